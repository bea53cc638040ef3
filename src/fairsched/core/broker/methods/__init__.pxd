"""The methods that a client calls, a file for each class of AMQP: basic (with confirm and tx), queue, exchange."""
