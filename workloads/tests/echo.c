/*
 * echo: copies standard input to standard output and then says on standard
 * error how much it was. Shows that the three streams pass through a front
 * end unchanged, and large reads and writes.
 */
#include "../common.h"

#include <unistd.h>

static void write_all(const char *buffer, size_t length)
{
    while (length > 0) {
        ssize_t written = write(STDOUT_FILENO, buffer, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            fail("cannot write: %s", strerror(errno));
        buffer += written;
        length -= (size_t)written;
    }
}

int main(int argc, char **argv)
{
    static char buffer[64 * 1024];
    uint64_t bytes = 0;
    parse_options(argc, argv, "Copy standard input to standard output.", NULL, 0);
    for (;;) {
        ssize_t length = read(STDIN_FILENO, buffer, sizeof buffer);
        if (length < 0 && errno == EINTR)
            continue;
        if (length < 0)
            fail("cannot read: %s", strerror(errno));
        if (length == 0)
            break;
        write_all(buffer, (size_t)length);
        bytes += (uint64_t)length;
    }
    fprintf(stderr, "echo: %" PRIu64 " bytes\n", bytes);
    return 0;
}
