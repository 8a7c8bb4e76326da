/* The floor: one event, framed once, written to every socket by a plain loop of write(). What no server can beat.
 *
 *   floor PORT EVENTS_PER_S BYTES
 *
 * Upgrades whoever connects. From the first line on stdin it publishes at the given rate until it is killed.
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

static int open_fds[20000], count, upgraded[65536];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void publish(long seq, int bytes) {
    static uint8_t frame[65536];
    char *text = (char *)frame + 4;
    int size = sprintf(text, "{\"op\":\"events\",\"run\":\"r\",\"events\":[{\"seq\":%ld,\"data\":{\"text\":\"t=%lu ", seq,
        (unsigned long)now_ns());
    while (size < bytes) text[size++] = 'x';
    size += sprintf(text + size, "\"}}],\"cursor\":\"%ld-1\",\"replay\":false}", seq);
    frame[0] = 0x81, frame[1] = 126, frame[2] = size >> 8, frame[3] = size & 255;
    for (int i = 0; i < count; i++)
        while (write(open_fds[i], frame, size + 4) < 0 && errno == EAGAIN) usleep(100);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int bytes = atoi(argv[3]), one = 1, poller = epoll_create1(0), is_on = 0;
    double rate = atof(argv[2]);
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 4096)) return 1;
    struct epoll_event wanted = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &wanted);
    wanted.data.fd = 0;
    epoll_ctl(poller, EPOLL_CTL_ADD, 0, &wanted);
    printf("READY\n");
    fflush(stdout);
    uint64_t begun_ns = 0;
    for (long seq = 0;;) {
        struct epoll_event happened[256];
        int n = epoll_wait(poller, happened, 256, is_on ? 1 : 1000);
        for (int i = 0; i < n; i++) {
            int fd = happened[i].data.fd;
            static char in[4096];
            if (fd == listener) {
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    wanted.data.fd = fd;
                    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &wanted);
                }
            } else if (read(fd, in, sizeof in) <= 0) {
                return 0;
            } else if (fd == 0) {
                is_on = 1, begun_ns = now_ns();
            } else if (!upgraded[fd]) {
                const char *yes = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                  "Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n";
                if (write(fd, yes, strlen(yes)) < 0) return 1;
                upgraded[fd] = 1, open_fds[count++] = fd;
            }
        }
        while (is_on && seq < (now_ns() - begun_ns) / 1e9 * rate) publish(++seq, bytes);
    }
}
