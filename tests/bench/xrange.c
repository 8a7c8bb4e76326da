/* The floor of a replay: a log read to its end in pages by a program that does nothing else with it.
 *
 *   xrange SOCKET KEY PAGE
 *
 * SOCKET: the store's unix socket. Prints events a second.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static char in[1 << 20], last[64];
static size_t at, held;
static int fd;

static int next(void) {
    if (at == held) {
        ssize_t got = read(fd, in, sizeof in);
        if (got <= 0) exit(1);
        at = 0, held = got;
    }
    return in[at++];
}

static long number(void) {
    char line[32];
    size_t size = 0;
    for (int c; (c = next()) != '\r';) line[size++] = c;
    next();
    line[size] = 0;
    return atol(line);
}

static void skip(long size) {
    for (size += 2; size;) {
        if (at == held) next(), at--;
        size_t here = held - at < (size_t)size ? held - at : (size_t)size;
        at += here, size -= here;
    }
}

int main(int argc, char **argv) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct timespec begin, end;
    long events = 0, entries;
    if (argc < 4) return 2;
    strncpy(to.sun_path, argv[1], sizeof to.sun_path - 1);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) return 1;
    strcpy(last, "-");
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        char ask[512];
        int size = snprintf(ask, sizeof ask, "*6\r\n$6\r\nXRANGE\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n$1\r\n+\r\n$5\r\nCOUNT\r\n$%zu\r\n%s\r\n",
            strlen(argv[2]), argv[2], strlen(last), last, strlen(argv[3]), argv[3]);
        if (write(fd, ask, size) != size || next() != '*') return 1;
        entries = number();
        for (long i = 0; i < entries; i++) {
            next(), number(), next(); /* an entry of two: its id */
            long length = number();
            last[0] = '(';
            for (long j = 0; j < length; j++) last[1 + j] = next();
            last[1 + length] = 0;
            skip(0);
            next();
            for (long fields = number(); fields; fields--) next(), skip(number());
        }
        events += entries;
    } while (entries);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.0f\n", events / ((end.tv_sec - begin.tv_sec) + (end.tv_nsec - begin.tv_nsec) / 1e9));
    return 0;
}
