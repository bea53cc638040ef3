// What a broker of AMQP 0-9-1 can take: messages published by one connection and consumed by another, at so little cost
// to the client itself that the broker is what is measured. librabbitmq makes some system calls for each message; here
// one read and one write serve as many as there are.
//
// Usage: load PORT fill MESSAGES SIZE QUEUES               publish so many, to be kept
//        load PORT keep MESSAGES SIZE QUEUES               the same with persistent messages in durable queues, kept-0 …
//        load PORT drain MESSAGES QUEUES PREFETCH          take so many out again
//        load PORT flow MESSAGES SIZE QUEUES CONSUMERS PREFETCH CONFIRMS RATE
//                                                          publish and consume at the same time
//        load PORT idle CONNECTIONS QUEUES                 have so many, the queues, idle-0 …, exclusive, print a line,
//                                                          and wait for the end of the input
//
// Queues are load-0, load-1 and so on, empty at first: transient messages go to each in turn. CONSUMERS: how many
// connections consume all of them. PREFETCH of each channel; 0: no acknowledgements, else each message is acknowledged by
// a method of its own. CONFIRMS: how many messages may wait to be confirmed; 0: none is. RATE: messages a second; 0: as
// many as come through, with no more than AHEAD under way.
//
// Prints microseconds of wall time a message, from a tenth of the messages on, and with `flow` percentiles of the
// time in microseconds from when a message was due to be sent until it was there, as JSON.

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { METHOD = 1, HEADER = 2, BODY = 3, FRAME_END = 0xCE, FRAME_HEAD = 7, FRAME_AROUND = 8 };
enum { BUFFER = 1 << 20, FLUSH = 60000, AHEAD = 4096, STAMP = 8 };

#define METHOD_ID(class, method) ((uint32_t) (class) << 16 | (method))

enum {
    CONNECTION_START = METHOD_ID(10, 10),
    CONNECTION_TUNE = METHOD_ID(10, 30),
    CONNECTION_OPEN_OK = METHOD_ID(10, 41),
    CHANNEL_OPEN_OK = METHOD_ID(20, 11),
    QUEUE_DECLARE_OK = METHOD_ID(50, 11),
    QUEUE_PURGE_OK = METHOD_ID(50, 31),
    BASIC_QOS_OK = METHOD_ID(60, 11),
    BASIC_CONSUME_OK = METHOD_ID(60, 21),
    BASIC_DELIVER = METHOD_ID(60, 60),
    BASIC_ACK = METHOD_ID(60, 80),
    CONFIRM_SELECT_OK = METHOD_ID(85, 11),
};

static void fail(const char *what) {
    fprintf(stderr, "load: %s\n", what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

// Connections ---------------------------------------------------------------------------------------------------------

typedef struct {
    int fd;
    uint8_t in[BUFFER], out[BUFFER];
    size_t in_begin, in_end, out_end;
} Link;

static uint64_t number_at(const uint8_t *at, int octets) {
    uint64_t number = 0;
    for (int i = 0; i < octets; i++)
        number = number << 8 | at[i];
    return number;
}

static void put_number(Link *l, uint64_t number, int octets) {
    for (int i = octets - 1; i >= 0; i--)
        l->out[l->out_end++] = number >> 8 * i;
}

static void put(Link *l, const void *octets, size_t size) {
    memcpy(l->out + l->out_end, octets, size);
    l->out_end += size;
}

static void put_short(Link *l, const char *text) {
    put_number(l, strlen(text), 1);
    put(l, text, strlen(text));
}

static size_t begin_frame(Link *l, int kind, int channel) {
    put_number(l, kind, 1);
    put_number(l, channel, 2);
    put_number(l, 0, 4);
    return l->out_end;
}

static void end_frame(Link *l, size_t begin) {
    uint32_t size = htonl(l->out_end - begin);
    memcpy(l->out + begin - 4, &size, 4);
    put_number(l, FRAME_END, 1);
}

static size_t begin_method(Link *l, int channel, int class, int method) {
    size_t begin = begin_frame(l, METHOD, channel);
    put_number(l, METHOD_ID(class, method), 4);
    return begin;
}

static void flush(Link *l) {
    for (size_t sent = 0; sent < l->out_end;) {
        ssize_t got = send(l->fd, l->out + sent, l->out_end - sent, MSG_NOSIGNAL);
        if (got < 0 && errno != EINTR)
            fail("the broker has closed the connection");
        sent += got > 0 ? got : 0;
    }
    l->out_end = 0;
}

// Read what there is; 0: nothing is (only without waiting).
static int receive(Link *l, int wait) {
    if (l->in_begin && l->in_end > BUFFER / 2) {
        memmove(l->in, l->in + l->in_begin, l->in_end - l->in_begin);
        l->in_end -= l->in_begin;
        l->in_begin = 0;
    }
    ssize_t got = recv(l->fd, l->in + l->in_end, BUFFER - l->in_end, wait ? 0 : MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0)
        fail("the broker has closed the connection");
    l->in_end += got;
    return 1;
}

// The next frame that is whole, from its payload on; NULL: there is none.
static const uint8_t *next_frame(Link *l, int *kind, uint32_t *size) {
    const uint8_t *at = l->in + l->in_begin;
    size_t there = l->in_end - l->in_begin;
    if (there < FRAME_AROUND)
        return NULL;
    *kind = at[0];
    *size = number_at(at + 3, 4);
    if (there < *size + FRAME_AROUND)
        return NULL;
    l->in_begin += *size + FRAME_AROUND;
    if (l->in_begin == l->in_end)
        l->in_begin = l->in_end = 0;
    return at + FRAME_HEAD;
}

// Send what is to be sent, and wait for a method.
static const uint8_t *await(Link *l, uint32_t method) {
    int kind;
    uint32_t size;
    flush(l);
    for (;;) {
        const uint8_t *payload = next_frame(l, &kind, &size);
        if (payload == NULL)
            receive(l, 1);
        else if (kind == METHOD && number_at(payload, 4) == method)
            return payload;
        else if (kind == METHOD && (number_at(payload, 4) & 0xFFFF) == 50)
            fail("the broker refuses");
    }
}

static Link *open_link(int port) {
    Link *l = calloc(1, sizeof *l);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    l->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(l->fd, (struct sockaddr *) &address, sizeof address))
        fail("nobody listens there");
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    put(l, "AMQP\0\0\x09\x01", 8);
    await(l, CONNECTION_START);
    size_t frame = begin_method(l, 0, 10, 11);
    put_number(l, 0, 4);
    put_short(l, "PLAIN");
    put_number(l, 12, 4);
    put(l, "\0guest\0guest", 12);
    put_short(l, "en_US");
    end_frame(l, frame);
    await(l, CONNECTION_TUNE);
    frame = begin_method(l, 0, 10, 31);
    put_number(l, 2047, 2);
    put_number(l, 131072, 4);
    put_number(l, 0, 2);
    end_frame(l, frame);
    frame = begin_method(l, 0, 10, 40);
    put_short(l, "/");
    put_number(l, 0, 2);
    end_frame(l, frame);
    await(l, CONNECTION_OPEN_OK);
    frame = begin_method(l, 1, 20, 10);
    put_number(l, 0, 1);
    end_frame(l, frame);
    await(l, CHANNEL_OPEN_OK);
    return l;
}

static enum { TRANSIENT, DURABLE = 2, EXCLUSIVE = 4 } kind; // of queues; messages in durable ones are persistent

static void put_queue(Link *l, long number) {
    char name[32];
    snprintf(name, sizeof name, "%s-%ld", kind == DURABLE ? "kept" : kind == EXCLUSIVE ? "idle" : "load", number);
    put_short(l, name);
}

static void declare(Link *l, int queues) {
    for (int i = 0; i < queues; i++) {
        size_t frame = begin_method(l, 1, 50, 10);
        put_number(l, 0, 2);
        put_queue(l, i);
        put_number(l, kind, 1);
        put_number(l, 0, 4);
        end_frame(l, frame);
        if (i % 100 == 99)
            flush(l);
    }
    flush(l);
    for (int i = 0; i < queues; i++)
        await(l, QUEUE_DECLARE_OK);
}

static void purge(Link *l, int queues) {
    for (int i = 0; i < queues; i++) {
        size_t frame = begin_method(l, 1, 50, 30);
        put_number(l, 0, 2);
        put_queue(l, i);
        put_number(l, 0, 1);
        end_frame(l, frame);
        await(l, QUEUE_PURGE_OK);
    }
}

// Publishing ----------------------------------------------------------------------------------------------------------

static long messages, size = 100, queues, consumers = 1, prefetch, confirms, rate;
static int port;
static atomic_long received;
static int64_t due_since; // when the first message is due, of `rate`

typedef struct {
    uint8_t *octets;
    size_t size, stamp_at;
} Encoded;

// A message for each queue, as it is sent but for its time.
static Encoded *encode(void) {
    Link *l = calloc(1, sizeof *l);
    Encoded *found = calloc(queues, sizeof *found);
    for (long i = 0; i < queues; i++) {
        l->out_end = 0;
        size_t frame = begin_method(l, 1, 60, 40);
        put_number(l, 0, 2);
        put_short(l, "");
        put_queue(l, i);
        put_number(l, 0, 1);
        end_frame(l, frame);
        frame = begin_frame(l, HEADER, 1);
        put_number(l, METHOD_ID(60, 0), 4);
        put_number(l, size, 8);
        put_number(l, 1 << 12, 2); // the delivery mode:
        put_number(l, kind == DURABLE ? 2 : 1, 1);
        end_frame(l, frame);
        frame = begin_frame(l, BODY, 1);
        found[i].stamp_at = l->out_end;
        memset(l->out + l->out_end, 'x', size);
        l->out_end += size;
        end_frame(l, frame);
        found[i].octets = malloc(l->out_end);
        found[i].size = l->out_end;
        memcpy(found[i].octets, l->out, l->out_end);
    }
    free(l);
    return found;
}

static void put_message(Link *l, const Encoded *m, int64_t stamp) {
    memcpy(l->out + l->out_end, m->octets, m->size);
    memcpy(l->out + l->out_end + m->stamp_at, &stamp, sizeof stamp);
    l->out_end += m->size;
}

// How far it is confirmed, after what has come. All are waited for, whichever comes last.
static long take_confirms(Link *l, long confirmed) {
    int kind;
    uint32_t length;
    const uint8_t *payload;
    while ((payload = next_frame(l, &kind, &length)) != NULL)
        if (kind == METHOD && number_at(payload, 4) == BASIC_ACK)
            confirmed = (long) number_at(payload + 4, 8);
    return confirmed;
}

// Wait until the next message may be sent, and say when it was due.
static int64_t await_turn(Link *l, long number, int bounded, long *confirmed) {
    if (rate) {
        int64_t due = due_since + (int64_t) (number * 1e9 / rate);
        if (now_ns() < due) {
            struct timespec until = {due / 1000000000, due % 1000000000};
            flush(l);
            while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL))
                ;
        }
        if (confirms && receive(l, 0))
            *confirmed = take_confirms(l, *confirmed);
        return due;
    }
    if (confirms && number - *confirmed >= confirms) {
        flush(l);
        while (number - *confirmed > confirms / 2) {
            receive(l, 1);
            *confirmed = take_confirms(l, *confirmed);
        }
    }
    if (bounded && number - atomic_load_explicit(&received, memory_order_relaxed) >= AHEAD) {
        flush(l);
        struct timespec nap = {0, 20000};
        while (number - atomic_load_explicit(&received, memory_order_relaxed) > AHEAD / 2)
            nanosleep(&nap, NULL);
    }
    return now_ns();
}

static void publish(Link *l, int bounded) {
    Encoded *encoded = encode();
    long confirmed = 0;
    if (confirms) {
        size_t frame = begin_method(l, 1, 85, 10);
        put_number(l, 0, 1);
        end_frame(l, frame);
        await(l, CONFIRM_SELECT_OK);
    }
    due_since = now_ns();
    for (long i = 0; i < messages; i++) {
        int64_t stamp = await_turn(l, i, bounded, &confirmed);
        put_message(l, &encoded[i % queues], stamp);
        if (l->out_end > FLUSH)
            flush(l);
    }
    flush(l);
    while (confirms && confirmed < messages) {
        receive(l, 1);
        confirmed = take_confirms(l, confirmed);
    }
}

static void *publisher(void *link) {
    publish(link, 1);
    return NULL;
}

// Consuming -----------------------------------------------------------------------------------------------------------

static int64_t *times;      // nanoseconds that each message took
static int64_t begun, done; // when a tenth of the messages was there, and all of them

static void consume(Link *l) {
    for (long i = 0; i < queues; i++) {
        size_t frame;
        if (i == 0 && prefetch) {
            frame = begin_method(l, 1, 60, 10);
            put_number(l, 0, 4);
            put_number(l, prefetch, 2);
            put_number(l, 0, 1);
            end_frame(l, frame);
            await(l, BASIC_QOS_OK);
        }
        frame = begin_method(l, 1, 60, 20);
        put_number(l, 0, 2);
        put_queue(l, i);
        put_queue(l, i); // the consumer tag
        put_number(l, (prefetch ? 0 : 2) | 8, 1); // no-wait
        put_number(l, 0, 4);
        end_frame(l, frame);
        if (l->out_end > FLUSH)
            flush(l);
    }
    flush(l);
}

static void note(int64_t now, int64_t stamp) {
    long taken = atomic_fetch_add_explicit(&received, 1, memory_order_relaxed);
    if (taken < messages)
        times[taken] = now - stamp;
    if (taken == messages / 10)
        begun = now;
    if (taken == messages - 1)
        done = now;
}

static void take(Link *l) {
    int kind;
    uint32_t length;
    const uint8_t *payload;
    while (atomic_load_explicit(&received, memory_order_relaxed) < messages) {
        receive(l, 1);
        int64_t now = now_ns();
        while ((payload = next_frame(l, &kind, &length)) != NULL) {
            if (kind == METHOD) {
                if (number_at(payload, 4) != BASIC_DELIVER)
                    fail("something other than a delivery has come");
                if (prefetch) {
                    size_t frame = begin_method(l, 1, 60, 80);
                    put(l, payload + 5 + payload[4], 8);
                    put_number(l, 0, 1);
                    end_frame(l, frame);
                    if (l->out_end > FLUSH)
                        flush(l);
                }
            } else if (kind == BODY) {
                int64_t stamp;
                memcpy(&stamp, payload, sizeof stamp);
                note(now, stamp);
            }
        }
        flush(l);
    }
}

static void *consumer(void *link) {
    take(link);
    return NULL;
}

static double wall(void) {
    return (done - begun) / 1e3 / (messages - messages / 10);
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;
    return (x > y) - (x < y);
}

static double percentile(double part) {
    long skipped = messages / 10, count = messages - skipped;
    return times[skipped + (long) (part * (count - 1))] / 1e3;
}

// The rest ------------------------------------------------------------------------------------------------------------

static void flow(void) {
    Link *from = open_link(port);
    pthread_t thread;
    declare(from, queues);
    purge(from, queues);
    for (long i = 0; i < consumers; i++) {
        Link *to = open_link(port);
        consume(to);
        pthread_create(&thread, NULL, consumer, to);
    }
    pthread_create(&thread, NULL, publisher, from);
    pthread_join(thread, NULL);
    while (atomic_load(&received) < messages)
        usleep(1000);
    qsort(times + messages / 10, messages - messages / 10, sizeof *times, ascending);
    printf("{\"wall_us\": %.4f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n", wall(), percentile(0.5), percentile(0.99));
}

static void idle(long connections) {
    for (long i = 0; i < connections; i++) {
        Link *l = open_link(port);
        if (i == 0)
            declare(l, queues);
    }
    puts("{}");
    fflush(stdout);
    while (getchar() != EOF)
        ;
}

int main(int count, char **arguments) {
    long numbers[7] = {0};
    const char *what = count > 2 ? arguments[2] : "";
    for (int i = 3; i < count && i < 10; i++)
        numbers[i - 3] = atol(arguments[i]);
    port = count > 1 ? atoi(arguments[1]) : 0;
    messages = numbers[0];
    if ((!strcmp(what, "fill") || !strcmp(what, "keep")) && count == 6) {
        size = numbers[1], queues = numbers[2], kind = *what == 'k' ? DURABLE : TRANSIENT;
        Link *l = open_link(port);
        declare(l, queues);
        confirms = 1000;
        int64_t begun = now_ns();
        publish(l, 0);
        printf("{\"wall_us\": %.4f}\n", (now_ns() - begun) / 1e3 / messages);
    } else if (!strcmp(what, "drain") && count == 6) {
        queues = numbers[1], prefetch = numbers[2];
        times = calloc(messages, sizeof *times);
        Link *l = open_link(port);
        consume(l);
        take(l);
        printf("{\"wall_us\": %.4f}\n", wall());
    } else if (!strcmp(what, "flow") && count == 10) {
        size = numbers[1], queues = numbers[2], consumers = numbers[3], prefetch = numbers[4], confirms = numbers[5];
        rate = numbers[6];
        times = calloc(messages, sizeof *times);
        flow();
    } else if (!strcmp(what, "idle") && count == 5) {
        queues = numbers[1], kind = EXCLUSIVE;
        idle(numbers[0]);
    } else {
        fail("usage: load PORT fill|keep MESSAGES SIZE QUEUES | drain MESSAGES QUEUES PREFETCH | flow MESSAGES SIZE QUEUES "
             "CONSUMERS PREFETCH CONFIRMS RATE | idle CONNECTIONS QUEUES");
    }
    return 0;
}
