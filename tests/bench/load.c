/* Many WebSocket readers in one process: opens N sockets on loopback, says what the template says, counts events.
 *
 *   load PORT SOCKETS SECONDS STALLED [TEMPLATE [OP]]
 *
 * TEMPLATE: a file of frames, one a line, sent once a socket is upgraded; `{i}` becomes the socket's number. With it a
 * socket is ready when it was told OP (`live`), without it when it was upgraded. Prints READY {…} when all are ready, waits
 * for a line on stdin while it reads on, then stops reading on the first STALLED sockets (which have small buffers) and
 * gives them time to fill, prints BEGIN, counts for SECONDS and prints RESULT {…}. An event begins with {"seq":N; its text carries t=<CLOCK_MONOTONIC in ns>. Latency is
 * that of the oldest event of each frame, of sockets that read. A seq that does not follow is a gap.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { OPENING, UPGRADING, OPEN };
enum { CHUNK = 1 << 18, LATENCIES = 4000000, TEMPLATE = 8192, SETTLE_S = 12 };

struct reader {
    int fd, state, number;
    long last_seq;
    uint8_t *held; /* the start of a frame whose rest has not come */
    size_t size, room;
};

static struct reader *readers;
static int poller, port, sockets, ready, is_measuring;
static long events, gaps, taken;
static uint32_t *latency_us;
static char template[TEMPLATE], ready_at[64] = "{\"op\":\"live\"";
static uint8_t chunk[CHUNK];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void fail(const char *why) {
    fprintf(stderr, "load: %s (%s)\n", why, strerror(errno));
    exit(1);
}

static void send_frame(int fd, int opcode, const char *text, size_t size) {
    uint8_t out[TEMPLATE + 16];
    size_t head = 2;
    out[0] = 0x80 | opcode;
    if (size < 126) {
        out[1] = 0x80 | size;
    } else {
        out[1] = 0x80 | 126, out[2] = size >> 8, out[3] = size & 255, head = 4;
    }
    memset(out + head, 0, 4); /* a mask of zeros masks nothing */
    memcpy(out + head + 4, text, size);
    if (write(fd, out, head + 4 + size) != (ssize_t)(head + 4 + size)) fail("cannot send");
}

static void say_template(struct reader *r) {
    char line[TEMPLATE], *from = template, *end;
    for (; (end = strchr(from, '\n')); from = end + 1) {
        size_t size = 0;
        for (char *at = from; at < end; at++) {
            if (!strncmp(at, "{i}", 3)) {
                size += sprintf(line + size, "%d", r->number), at += 2;
            } else {
                line[size++] = *at;
            }
        }
        send_frame(r->fd, 1, line, size);
    }
}

static void take_message(struct reader *r, const uint8_t *text, size_t size) {
    const uint8_t *at = text, *end = text + size, *mark;
    uint64_t sent_ns = 0;
    int looked = 0;
    if (*template && size > strlen(ready_at) && !memcmp(text, ready_at, strlen(ready_at))) ready++;
    if (size > 11 && !memcmp(text, "{\"op\":\"bye\"", 11)) {
        fprintf(stderr, "load: %.*s\n", (int)size, text);
        exit(1);
    }
    while ((at = memmem(at, end - at, "{\"seq\":", 7))) {
        long seq = strtol((const char *)at + 7, NULL, 10);
        if (r->last_seq && seq != r->last_seq + 1) gaps++;
        r->last_seq = seq, events++, at += 7;
        if (is_measuring && !looked++ && (mark = memmem(at, end - at, "t=", 2))) sent_ns = strtoull((const char *)mark + 2, NULL, 10);
    }
    if (is_measuring && sent_ns && taken < LATENCIES) latency_us[taken++] = (now_ns() - sent_ns) / 1000;
}

static size_t take_frames(struct reader *r, const uint8_t *in, size_t size) {
    size_t used = 0;
    while (size - used >= 2) {
        const uint8_t *p = in + used;
        uint64_t length = p[1] & 127;
        size_t head = length < 126 ? 2 : length == 126 ? 4 : 10;
        if (size - used < head) break;
        if (head > 2) length = 0;
        for (size_t i = 2; i < head; i++) length = length << 8 | p[i];
        if (size - used < head + length) break;
        if ((p[0] & 15) == 1) take_message(r, p + head, length);
        if ((p[0] & 15) == 9) send_frame(r->fd, 10, (const char *)p + head, length);
        if ((p[0] & 15) == 8) fail("a socket was closed");
        used += head + length;
    }
    return used;
}

static void hold(struct reader *r, const uint8_t *in, size_t size) {
    if (r->size + size > r->room) r->held = realloc(r->held, r->room = r->size + size);
    memcpy(r->held + r->size, in, size);
    r->size += size;
}

static void feed(struct reader *r, const uint8_t *in, size_t size) {
    size_t used;
    if (r->size) {
        hold(r, in, size);
        in = r->held, size = r->size;
    }
    used = take_frames(r, in, size);
    if (r->size) {
        memmove(r->held, r->held + used, r->size -= used);
    } else if (used < size) {
        hold(r, in + used, size - used);
    }
    if (!r->size) free(r->held), r->held = NULL, r->room = 0;
}

static void upgrade(struct reader *r) {
    char ask[512];
    int size = snprintf(ask, sizeof ask,
        "GET /v1/socket HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: towline.v1\r\n\r\n", port);
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = r};
    if (write(r->fd, ask, size) != size) fail("cannot ask for the upgrade");
    r->state = UPGRADING;
    epoll_ctl(poller, EPOLL_CTL_MOD, r->fd, &wanted);
}

static void take(struct reader *r) {
    ssize_t size = read(r->fd, chunk, CHUNK);
    uint8_t *end;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) fail("a connection broke");
    if (r->state == OPEN) {
        feed(r, chunk, size);
        return;
    }
    hold(r, chunk, size);
    if (!(end = memmem(r->held, r->size, "\r\n\r\n", 4))) return;
    if (memcmp(r->held + 9, "101", 3)) fail("no upgrade");
    uint8_t *rest = r->held;
    size_t after = r->size - (end + 4 - rest);
    r->held = NULL, r->size = r->room = 0, r->state = OPEN;
    if (*template) say_template(r); else ready++;
    if (after) feed(r, end + 4, after);
    free(rest);
}

static void pump(int ms) {
    struct epoll_event happened[512];
    int count = epoll_wait(poller, happened, 512, ms);
    for (int i = 0; i < count; i++) {
        struct reader *r = happened[i].data.ptr;
        if (r->state == OPENING) upgrade(r); else take(r);
    }
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    port = atoi(argv[1]), sockets = atoi(argv[2]);
    double seconds = atof(argv[3]);
    int stalled = atoi(argv[4]);
    if (argc > 5) {
        FILE *file = fopen(argv[5], "r");
        if (!file) fail("no template");
        template[fread(template, 1, TEMPLATE - 1, file)] = 0;
        fclose(file);
    }
    if (argc > 6) snprintf(ready_at, sizeof ready_at, "{\"op\":\"%s\"", argv[6]);
    poller = epoll_create1(0);
    readers = calloc(sockets, sizeof *readers);
    latency_us = malloc(LATENCIES * sizeof *latency_us);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint64_t start_ns = now_ns();
    for (int i = 0; i < sockets; i++) {
        struct reader *r = readers + i;
        int one = 1, small = 16384;
        r->number = i;
        if ((r->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) < 0) fail("no socket");
        setsockopt(r->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (i < stalled) setsockopt(r->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        if (connect(r->fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS) fail("cannot connect");
        struct epoll_event wanted = {.events = EPOLLOUT, .data.ptr = r};
        epoll_ctl(poller, EPOLL_CTL_ADD, r->fd, &wanted);
        while (i + 1 - ready >= 100) pump(100);
    }
    while (ready < sockets) {
        pump(100);
        if (now_ns() - start_ns > 60000000000ull) fail("not all sockets got ready");
    }
    printf("READY {\"ms\": %.1f, \"events\": %ld}\n", (now_ns() - start_ns) / 1e6, events);
    fflush(stdout);
    fcntl(0, F_SETFL, O_NONBLOCK);
    for (char c = 0; c != '\n';) {
        pump(10);
        if (!read(0, &c, 1)) return 0;
    }
    for (int i = 0; i < stalled; i++) epoll_ctl(poller, EPOLL_CTL_DEL, readers[i].fd, NULL);
    for (start_ns = now_ns(); stalled && now_ns() - start_ns < SETTLE_S * 1000000000ull;) pump(10);
    printf("BEGIN\n");
    fflush(stdout);
    events = 0, is_measuring = 1, start_ns = now_ns();
    while (now_ns() - start_ns < seconds * 1e9) pump(10);
    double took_s = (now_ns() - start_ns) / 1e9;
    qsort(latency_us, taken, sizeof *latency_us, by_size);
    printf("RESULT {\"seconds\": %.3f, \"events\": %ld, \"gaps\": %ld, \"p50_ms\": %.3f, \"p99_ms\": %.3f}\n", took_s,
        events, gaps, taken ? latency_us[taken / 2] / 1e3 : 0, taken ? latency_us[taken * 99 / 100] / 1e3 : 0);
    return 0;
}
