// A broker of AMQP 0-9-1 that does nothing but deliver and confirm, so that what a client spends on a message is its own.
//
// Usage: feeder. It prints the port that it listens on, of the loop-back interface, and ends with its standard input.
//
// A queue's name says what is in it, without end: SIZE.minimal or SIZE.rich, and whatever follows after another dot.
// Bodies have SIZE octets. Minimal messages have a delivery mode; rich ones nine properties and four headers, of which
// x-tenant is tenant-0000 to tenant-0999 in turn. Deliveries keep to the channel's prefetch; an acknowledgement of what
// is not outstanding ends the connection with a line on standard error. Messages that are published are forgotten, and on
// a channel in confirm mode confirmed, each singly. Whatever else is asked is granted.
//
// Source: AMQP 0-9-1, sections 4.2.3 (frames), 4.2.6 (content) and 1 (methods).

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { METHOD = 1, HEADER = 2, BODY = 3, HEARTBEAT = 8, FRAME_END = 0xCE, FRAME_HEAD = 7, FRAME_AROUND = 8 };
enum { FRAME_MAX = 131072, CHANNELS = 2048, TENANTS = 1000 };
enum { INPUT = 4 << 20, AHEAD = 256 << 10, WINDOW = 1 << 16 };

#define METHOD_ID(class, method) ((class) << 16 | (method))

enum {
    CONNECTION_START = METHOD_ID(10, 10),
    CONNECTION_START_OK = METHOD_ID(10, 11),
    CONNECTION_TUNE = METHOD_ID(10, 30),
    CONNECTION_TUNE_OK = METHOD_ID(10, 31),
    CONNECTION_OPEN = METHOD_ID(10, 40),
    CONNECTION_CLOSE = METHOD_ID(10, 50),
    CHANNEL_OPEN = METHOD_ID(20, 10),
    CHANNEL_FLOW = METHOD_ID(20, 20),
    CHANNEL_CLOSE = METHOD_ID(20, 40),
    CHANNEL_CLOSE_OK = METHOD_ID(20, 41),
    QUEUE_DECLARE = METHOD_ID(50, 10),
    BASIC_QOS = METHOD_ID(60, 10),
    BASIC_CONSUME = METHOD_ID(60, 20),
    BASIC_CANCEL = METHOD_ID(60, 30),
    BASIC_PUBLISH = METHOD_ID(60, 40),
    BASIC_DELIVER = METHOD_ID(60, 60),
    BASIC_ACK = METHOD_ID(60, 80),
    BASIC_REJECT = METHOD_ID(60, 90),
    BASIC_NACK = METHOD_ID(60, 120),
    CONFIRM_SELECT = METHOD_ID(85, 10),
};

// Bytes to send ------------------------------------------------------------------------------------------------------

typedef struct {
    uint8_t *bytes;
    size_t size, capacity;
    size_t sent;
} Output;

static uint8_t *make_room(Output *out, size_t size) {
    if (out->size + size > out->capacity) {
        out->capacity = 2 * (out->size + size);
        out->bytes = realloc(out->bytes, out->capacity);
        if (out->bytes == NULL) {
            perror("feeder");
            exit(1);
        }
    }
    return out->bytes + out->size;
}

static void put(Output *out, const void *bytes, size_t size) {
    memcpy(make_room(out, size), bytes, size);
    out->size += size;
}

static void put_number(Output *out, uint64_t number, int octets) {
    uint8_t *at = make_room(out, octets);
    for (int i = 0; i < octets; i++)
        at[i] = number >> 8 * (octets - 1 - i);
    out->size += octets;
}

static void put_short_text(Output *out, const char *text) {
    put_number(out, strlen(text), 1);
    put(out, text, strlen(text));
}

static void put_long_text(Output *out, const char *text) {
    put_number(out, strlen(text), 4);
    put(out, text, strlen(text));
}

// Of a table: its name, its kind and its value.
static void put_field(Output *out, const char *name, char kind, uint64_t number, int octets) {
    put_short_text(out, name);
    put_number(out, kind, 1);
    put_number(out, number, octets);
}

static void put_text_field(Output *out, const char *name, const char *text) {
    put_short_text(out, name);
    put_number(out, 'S', 1);
    put_long_text(out, text);
}

// Begin what begins with its length, in four octets; return where.
static size_t begin_long(Output *out) {
    put_number(out, 0, 4);
    return out->size;
}

static void end_long(Output *out, size_t begin) {
    uint32_t length = htonl(out->size - begin);
    memcpy(out->bytes + begin - 4, &length, 4);
}

static size_t begin_frame(Output *out, int kind, int channel) {
    put_number(out, kind, 1);
    put_number(out, channel, 2);
    return begin_long(out);
}

static void end_frame(Output *out, size_t begin) {
    end_long(out, begin);
    put_number(out, FRAME_END, 1);
}

static size_t begin_method(Output *out, int channel, uint32_t method) {
    size_t begin = begin_frame(out, METHOD, channel);
    put_number(out, method, 4);
    return begin;
}

static void put_method(Output *out, int channel, uint32_t method) {
    end_frame(out, begin_method(out, channel, method));
}

// Bytes that came ----------------------------------------------------------------------------------------------------

static uint64_t number_at(const uint8_t *at, int octets) {
    uint64_t number = 0;
    for (int i = 0; i < octets; i++)
        number = number << 8 | at[i];
    return number;
}

// Copy a short text, and return what follows it.
static const uint8_t *take_short_text(const uint8_t *at, char text[256]) {
    memcpy(text, at + 1, at[0]);
    text[at[0]] = 0;
    return at + 1 + at[0];
}

// Channels and what they deliver -------------------------------------------------------------------------------------

typedef struct {
    int consuming, no_ack;
    uint32_t prefetch;
    Output message;         // as it is sent, but for the delivery tag and the tenant
    size_t tag_at, tenant_at;
    uint64_t next;          // delivery tag
    uint64_t oldest;        // that may be outstanding
    uint32_t outstanding;
    uint8_t is_outstanding[WINDOW]; // by the tag's last bits
    int confirming;
    uint64_t published;     // since then
} Channel;

static void put_rich_properties(Channel *c) {
    Output *out = &c->message;
    // content type, headers, delivery mode, priority, correlation id, message id, timestamp, type, app id
    put_number(out, 1 << 15 | 1 << 13 | 1 << 12 | 1 << 11 | 1 << 10 | 1 << 7 | 1 << 6 | 1 << 5 | 1 << 3, 2);
    put_short_text(out, "application/json");
    size_t table = begin_long(out);
    put_field(out, "x-cost", 'I', 42, 4);
    put_text_field(out, "x-tenant", "tenant-0000");
    c->tenant_at = out->size - 4;
    put_field(out, "x-flag", 't', 1, 1);
    put_field(out, "x-weight", 'l', 123456789, 8);
    end_long(out, table);
    put_number(out, 2, 1);
    put_number(out, 5, 1);
    put_short_text(out, "c0a8012345678901234567890123456789ab");
    put_short_text(out, "m0a8012345678901234567890123456789ab");
    put_number(out, 1700000000, 8);
    put_short_text(out, "order.created");
    put_short_text(out, "feeder");
}

// Make the message of a queue; false: its name is not understood.
static int make_message(Channel *c, int channel, const char *consumer, const char *queue) {
    Output *out = &c->message;
    unsigned size;
    char kind[8];
    if (sscanf(queue, "%u.%7[a-z]", &size, kind) != 2 || (strcmp(kind, "minimal") && strcmp(kind, "rich")) ||
        size > FRAME_MAX - FRAME_AROUND) {
        fprintf(stderr, "feeder: queues are SIZE.minimal or SIZE.rich, up to %d octets in size, got %s\n",
                FRAME_MAX - FRAME_AROUND, queue);
        return 0;
    }
    out->size = 0;
    c->tenant_at = 0;
    size_t frame = begin_method(out, channel, BASIC_DELIVER);
    put_short_text(out, consumer);
    c->tag_at = out->size;
    put_number(out, 0, 8);
    put_number(out, 0, 1);
    put_short_text(out, "");
    put_short_text(out, queue);
    end_frame(out, frame);
    frame = begin_frame(out, HEADER, channel);
    put_number(out, (uint64_t) METHOD_ID(60, 0), 4);
    put_number(out, size, 8);
    if (!strcmp(kind, "minimal")) {
        put_number(out, 1 << 12, 2);
        put_number(out, 1, 1);
    } else
        put_rich_properties(c);
    end_frame(out, frame);
    if (size) {
        frame = begin_frame(out, BODY, channel);
        memset(make_room(out, size), 'x', size);
        out->size += size;
        end_frame(out, frame);
    }
    return 1;
}

static int may_deliver(const Channel *c) {
    return c != NULL && c->consuming && (c->no_ack || c->outstanding < (c->prefetch ? c->prefetch : WINDOW - 1));
}

static void deliver(Channel *c, Output *out) {
    uint8_t *at = make_room(out, c->message.size);
    uint64_t tag = c->next++;
    memcpy(at, c->message.bytes, c->message.size);
    for (int i = 0; i < 8; i++)
        at[c->tag_at + i] = tag >> 8 * (7 - i);
    if (c->tenant_at) {
        unsigned tenant = tag % TENANTS;
        for (int i = 3; i >= 0; i--, tenant /= 10)
            at[c->tenant_at + i] = '0' + tenant % 10;
    }
    out->size += c->message.size;
    if (!c->no_ack) {
        c->is_outstanding[tag % WINDOW] = 1;
        c->outstanding++;
    }
}

static int settle_one(Channel *c, uint64_t tag) {
    if (tag < c->oldest || tag >= c->next || !c->is_outstanding[tag % WINDOW])
        return 0;
    c->is_outstanding[tag % WINDOW] = 0;
    c->outstanding--;
    while (c->oldest < c->next && !c->is_outstanding[c->oldest % WINDOW])
        c->oldest++;
    return 1;
}

// Settle a delivery, or with `multiple` all up to it; false: it is not outstanding.
static int settle(Channel *c, uint64_t tag, int multiple) {
    if (!multiple)
        return settle_one(c, tag);
    if (tag == 0)
        tag = c->next - 1;
    if (tag >= c->next)
        return 0;
    for (uint64_t one = c->oldest; one < tag; one++)
        if (c->is_outstanding[one % WINDOW])
            settle_one(c, one);
    return settle_one(c, tag);
}

// Connections --------------------------------------------------------------------------------------------------------

typedef struct {
    int socket;
    int greeted, closing;
    Output out;
    uint8_t *input;
    size_t input_size;
    Channel *channels[CHANNELS];
    int last_channel;
} Connection;

static void put_start(Output *out) {
    static const char *const capabilities[] = {
        "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
        "connection.blocked", "consumer_priorities", "authentication_failure_close", "per_consumer_qos",
        "direct_reply_to",
    };
    size_t frame = begin_method(out, 0, CONNECTION_START);
    put_number(out, 0, 1);
    put_number(out, 9, 1);
    size_t table = begin_long(out);
    put_text_field(out, "product", "RabbitMQ");
    put_text_field(out, "version", "3.10.8");
    put_short_text(out, "capabilities");
    put_number(out, 'F', 1);
    size_t inner = begin_long(out);
    for (size_t i = 0; i < sizeof capabilities / sizeof *capabilities; i++)
        put_field(out, capabilities[i], 't', 1, 1);
    end_long(out, inner);
    end_long(out, table);
    put_long_text(out, "PLAIN AMQPLAIN");
    put_long_text(out, "en_US");
    end_frame(out, frame);
}

static void put_tune(Output *out) {
    size_t frame = begin_method(out, 0, CONNECTION_TUNE);
    put_number(out, CHANNELS - 1, 2);
    put_number(out, FRAME_MAX, 4);
    put_number(out, 0, 2); // no heartbeats
    end_frame(out, frame);
}

static int consume(Connection *n, Channel *c, int channel, const uint8_t *at) {
    char queue[256], consumer[256];
    at = take_short_text(at + 2, queue);
    at = take_short_text(at, consumer);
    if (!*consumer)
        strcpy(consumer, "amq.ctag-AAAAAAAAAAAAAAAAAAAAAA");
    c->no_ack = *at >> 1 & 1;
    size_t frame = begin_method(&n->out, channel, BASIC_CONSUME + 1);
    put_short_text(&n->out, consumer);
    end_frame(&n->out, frame);
    return c->consuming = make_message(c, channel, consumer, queue);
}

static void answer_with_text(Output *out, int channel, uint32_t method, const uint8_t *at, int numbers) {
    char text[256];
    take_short_text(at, text);
    size_t frame = begin_method(out, channel, method);
    put_short_text(out, text);
    for (int i = 0; i < numbers; i++)
        put_number(out, 0, 4);
    end_frame(out, frame);
}

static void open_channel(Connection *n, int channel) {
    Channel *c = n->channels[channel] ? n->channels[channel] : calloc(1, sizeof *c);
    Output message = c->message;
    memset(c, 0, sizeof *c);
    c->message = message;
    c->next = c->oldest = 1;
    n->channels[channel] = c;
    if (channel > n->last_channel)
        n->last_channel = channel;
    size_t frame = begin_method(&n->out, channel, CHANNEL_OPEN + 1);
    put_long_text(&n->out, "");
    end_frame(&n->out, frame);
}

// Of a channel that is open; false ends the connection.
static int on_channel_method(Connection *n, Channel *c, int channel, uint32_t method, const uint8_t *at) {
    size_t frame;
    switch (method) {
    case BASIC_ACK:
    case BASIC_NACK:
    case BASIC_REJECT:
        if (settle(c, number_at(at, 8), method != BASIC_REJECT && at[8] & 1))
            return 1;
        fprintf(stderr, "feeder: delivery tag %llu of channel %d is not outstanding\n",
                (unsigned long long) number_at(at, 8), channel);
        return 0;
    case BASIC_PUBLISH:
        if (c->confirming) {
            frame = begin_method(&n->out, channel, BASIC_ACK);
            put_number(&n->out, ++c->published, 8);
            put_number(&n->out, 0, 1);
            end_frame(&n->out, frame);
        }
        return 1;
    case CONFIRM_SELECT:
        c->confirming = 1;
        put_method(&n->out, channel, method + 1);
        return 1;
    case BASIC_CONSUME:
        return consume(n, c, channel, at);
    case BASIC_QOS:
        c->prefetch = number_at(at + 4, 2);
        put_method(&n->out, channel, method + 1);
        return 1;
    case BASIC_CANCEL:
        c->consuming = 0;
        answer_with_text(&n->out, channel, method + 1, at, 0);
        return 1;
    case QUEUE_DECLARE:
        answer_with_text(&n->out, channel, method + 1, at + 2, 2);
        return 1;
    case CHANNEL_FLOW:
        frame = begin_method(&n->out, channel, method + 1);
        put_number(&n->out, *at, 1);
        end_frame(&n->out, frame);
        return 1;
    case CHANNEL_CLOSE:
        c->consuming = 0;
        put_method(&n->out, channel, method + 1);
        return 1;
    case CHANNEL_CLOSE_OK:
        return 1;
    default:
        put_method(&n->out, channel, method + 1);
        return 1;
    }
}

// False ends the connection.
static int on_method(Connection *n, int channel, uint32_t method, const uint8_t *at) {
    switch (method) {
    case CONNECTION_START_OK:
        put_tune(&n->out);
        return 1;
    case CONNECTION_TUNE_OK:
        return 1;
    case CONNECTION_OPEN:
        answer_with_text(&n->out, 0, method + 1, (const uint8_t *) "", 0);
        return 1;
    case CONNECTION_CLOSE:
        put_method(&n->out, 0, method + 1);
        n->closing = 1;
        return 1;
    case CHANNEL_OPEN:
        open_channel(n, channel);
        return 1;
    default:
        if (n->channels[channel] == NULL) {
            fprintf(stderr, "feeder: method %u.%u on channel %d, which is not open\n", method >> 16, method & 0xFFFF,
                    channel);
            return 0;
        }
        return on_channel_method(n, n->channels[channel], channel, method, at);
    }
}

// Take in what is there in whole frames; false ends the connection.
static int take_in(Connection *n) {
    size_t at = 0;
    int going = 1;
    if (!n->greeted) {
        if (n->input_size < 8)
            return 1;
        at = 8; // the protocol header
        n->greeted = 1;
        put_start(&n->out);
    }
    while (going && n->input_size - at >= FRAME_AROUND) {
        const uint8_t *frame = n->input + at;
        size_t size = number_at(frame + 3, 4);
        int channel = number_at(frame + 1, 2) % CHANNELS;
        if (n->input_size - at < size + FRAME_AROUND)
            break;
        at += size + FRAME_AROUND;
        if (frame[0] == HEARTBEAT)
            end_frame(&n->out, begin_frame(&n->out, HEARTBEAT, 0));
        else if (frame[0] == METHOD)
            going = on_method(n, channel, number_at(frame + FRAME_HEAD, 4), frame + FRAME_HEAD + 4);
    }
    memmove(n->input, n->input + at, n->input_size - at);
    n->input_size -= at;
    return going;
}

// Make deliveries, but not too far ahead of what is sent; return whether there could be more.
static int fill(Connection *n) {
    int more = 0;
    for (int i = 1; i <= n->last_channel; i++) {
        while (may_deliver(n->channels[i]) && n->out.size - n->out.sent < AHEAD)
            deliver(n->channels[i], &n->out);
        more |= may_deliver(n->channels[i]);
    }
    return more;
}

// Send what the socket takes; false: it is broken.
static int send_some(Connection *n) {
    Output *out = &n->out;
    if (out->sent == out->size)
        return 1;
    ssize_t sent = send(n->socket, out->bytes + out->sent, out->size - out->sent, MSG_NOSIGNAL);
    if (sent < 0)
        return errno == EAGAIN;
    out->sent += sent;
    memmove(out->bytes, out->bytes + out->sent, out->size - out->sent);
    out->size -= out->sent;
    out->sent = 0;
    return 1;
}

static int receive_some(Connection *n) {
    ssize_t got = recv(n->socket, n->input + n->input_size, INPUT - n->input_size, 0);
    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    n->input_size += got;
    return take_in(n);
}

static void *serve(void *argument) {
    Connection *n = argument;
    int one = 1, going = 1;
    setsockopt(n->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(n->socket, F_SETFL, O_NONBLOCK);
    while (going) {
        int more = fill(n);
        going = send_some(n) && !(n->closing && n->out.size == n->out.sent);
        if (!going)
            break;
        struct pollfd ready = {n->socket, POLLIN | (more || n->out.size > n->out.sent ? POLLOUT : 0), 0};
        poll(&ready, 1, -1);
        if (ready.revents & (POLLIN | POLLHUP | POLLERR))
            going = receive_some(n);
    }
    close(n->socket);
    for (int i = 0; i < CHANNELS; i++)
        if (n->channels[i] != NULL) {
            free(n->channels[i]->message.bytes);
            free(n->channels[i]);
        }
    free(n->out.bytes);
    free(n->input);
    free(n);
    return NULL;
}

static void *accept_all(void *argument) {
    int listening = *(int *) argument;
    for (;;) {
        int found = accept(listening, NULL, NULL);
        if (found < 0)
            continue;
        Connection *n = calloc(1, sizeof *n);
        pthread_t thread;
        n->socket = found;
        n->input = malloc(INPUT);
        pthread_create(&thread, NULL, serve, n);
        pthread_detach(thread);
    }
    return NULL;
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    pthread_t thread;
    if (bind(listening, (struct sockaddr *) &address, size) || listen(listening, 64) ||
        getsockname(listening, (struct sockaddr *) &address, &size)) {
        perror("feeder");
        return 1;
    }
    pthread_create(&thread, NULL, accept_all, &listening);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
