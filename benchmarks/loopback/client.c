// What the same work costs in C: a client on librabbitmq.
//
// Usage: client fill PORT QUEUE MESSAGES SIZE              declare a queue and publish so many messages to it
//        client publish PORT QUEUE MESSAGES SIZE WINDOW    publish so many, in rounds of WINDOW, each of which is confirmed
//        client consume PORT QUEUE MESSAGES PREFETCH ACK   take so many, and acknowledge each if ACK is 1, else none
//
// `publish` and `consume` print microseconds of processor time (user and system) and of wall time per message, as JSON, from a tenth
// of the messages on: what connecting costs is not asked.

#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static void fail(const char *what) {
    fprintf(stderr, "client: %s failed\n", what);
    exit(1);
}

static void check(amqp_connection_state_t connection, const char *what) {
    if (amqp_get_rpc_reply(connection).reply_type != AMQP_RESPONSE_NORMAL)
        fail(what);
}

static double wall_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static double processor_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static amqp_connection_state_t open_connection(int port) {
    amqp_connection_state_t connection = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(connection);
    if (socket == NULL || amqp_socket_open(socket, "127.0.0.1", port))
        fail("connecting");
    if (amqp_login(connection, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest").reply_type !=
        AMQP_RESPONSE_NORMAL)
        fail("logging in");
    amqp_channel_open(connection, 1);
    check(connection, "opening a channel");
    return connection;
}

static void print_costs(double wall, double processor, long messages) {
    printf("{\"cpu_us\": %.4f, \"wall_us\": %.4f}\n", (processor_seconds() - processor) / messages * 1e6,
           (wall_seconds() - wall) / messages * 1e6);
}

static void fill(amqp_connection_state_t connection, amqp_bytes_t queue, long messages, size_t size) {
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 1};
    amqp_bytes_t body = {size, malloc(size)};
    memset(body.bytes, 'x', size);
    amqp_queue_declare(connection, 1, queue, 0, 1, 0, 0, amqp_empty_table);
    check(connection, "declaring the queue");
    for (long i = 0; i < messages; i++)
        if (amqp_basic_publish(connection, 1, amqp_empty_bytes, queue, 0, 0, &properties, body))
            fail("publishing");
    // An answer comes only after everything before it was taken in.
    amqp_queue_declare(connection, 1, queue, 1, 0, 0, 0, amqp_empty_table);
    check(connection, "filling the queue");
    free(body.bytes);
}

static void wait_for_confirms(amqp_connection_state_t connection, uint64_t last) {
    for (uint64_t confirmed = 0; confirmed < last;) {
        amqp_frame_t frame;
        amqp_maybe_release_buffers(connection);
        if (amqp_simple_wait_frame(connection, &frame) || frame.frame_type != AMQP_FRAME_METHOD ||
            frame.payload.method.id != AMQP_BASIC_ACK_METHOD)
            fail("waiting for confirms");
        // All are waited for, whichever comes last.
        confirmed = ((amqp_basic_ack_t *) frame.payload.method.decoded)->delivery_tag;
    }
}

static void publish(amqp_connection_state_t connection, amqp_bytes_t queue, long messages, size_t size, long window) {
    double wall = 0, processor = 0;
    long skipped = messages / 10;
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 1};
    amqp_bytes_t body = {size, malloc(size)};
    memset(body.bytes, 'x', size);
    amqp_confirm_select(connection, 1);
    check(connection, "asking for confirms");
    for (long i = 0; i < messages; i++) {
        if (i == skipped) {
            wall = wall_seconds();
            processor = processor_seconds();
        }
        if (amqp_basic_publish(connection, 1, amqp_empty_bytes, queue, 1, 0, &properties, body))
            fail("publishing");
        if ((i + 1) % window == 0 || i + 1 == messages)
            wait_for_confirms(connection, i + 1);
    }
    print_costs(wall, processor, messages - skipped);
    free(body.bytes);
}

static void consume(amqp_connection_state_t connection, amqp_bytes_t queue, long messages, int prefetch, int ack) {
    double wall = 0, processor = 0;
    long skipped = messages / 10;
    amqp_basic_qos(connection, 1, 0, prefetch, 0);
    check(connection, "setting the prefetch");
    amqp_basic_consume(connection, 1, queue, amqp_empty_bytes, 0, !ack, 0, amqp_empty_table);
    check(connection, "consuming");
    for (long i = 0; i < messages; i++) {
        amqp_envelope_t envelope;
        if (i == skipped) {
            wall = wall_seconds();
            processor = processor_seconds();
        }
        amqp_maybe_release_buffers(connection);
        if (amqp_consume_message(connection, &envelope, NULL, 0).reply_type != AMQP_RESPONSE_NORMAL)
            fail("taking a message");
        if (ack && amqp_basic_ack(connection, 1, envelope.delivery_tag, 0))
            fail("acknowledging");
        amqp_destroy_envelope(&envelope);
    }
    print_costs(wall, processor, messages - skipped);
}

int main(int count, char **arguments) {
    int filling = count == 6 && !strcmp(arguments[1], "fill");
    int publishing = count == 7 && !strcmp(arguments[1], "publish");
    if (!filling && !publishing && (count != 7 || strcmp(arguments[1], "consume"))) {
        fprintf(stderr, "usage: client fill PORT QUEUE MESSAGES SIZE\n"
                        "       client publish PORT QUEUE MESSAGES SIZE WINDOW\n"
                        "       client consume PORT QUEUE MESSAGES PREFETCH ACK\n");
        return 2;
    }
    amqp_connection_state_t connection = open_connection(atoi(arguments[2]));
    amqp_bytes_t queue = amqp_cstring_bytes(arguments[3]);
    long messages = atol(arguments[4]);
    if (filling)
        fill(connection, queue, messages, atol(arguments[5]));
    else if (publishing)
        publish(connection, queue, messages, atol(arguments[5]), atol(arguments[6]));
    else
        consume(connection, queue, messages, atoi(arguments[5]), atoi(arguments[6]));
    amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(connection);
    return 0;
}
