/*
 * vectors: a system call moves 12 fresh pages that two elements of a vector name.
 * argv: readv, preadv2, recvmsg, recvmmsg, writev, or vmsplice, which leaves 16 pages in a pipe;
 * or direct FILE: 12 pages of a file that is opened with O_DIRECT.
 */
#define _GNU_SOURCE
#include "../common.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 256UL

static char *untouched(void)
{
    char *memory =
        mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        exit(2);
    return memory;
}

/* Elements of eight and of four pages, with eight between them. */
static void elements(struct iovec *vector, char *memory)
{
    vector[0] = (struct iovec){memory, 8 * PAGE};
    vector[1] = (struct iovec){memory + 16 * PAGE, 4 * PAGE};
}

static void expect(ssize_t done, ssize_t wanted)
{
    if (done != wanted) {
        perror("vectors");
        exit(3);
    }
}

int main(int argc, char **argv)
{
    const char *call = argc > 1 ? argv[1] : "readv";
    const ssize_t all = 12 * PAGE;
    char *memory = untouched();
    struct iovec vector[2];
    elements(vector, memory);
    int zero = open("/dev/zero", O_RDWR);
    if (strcmp(call, "readv") == 0) {
        expect(readv(zero, vector, 2), all);
    } else if (strcmp(call, "preadv2") == 0) {
        expect(preadv2(zero, vector, 2, 0, 0), all);
    } else if (strcmp(call, "writev") == 0) {
        expect(writev(zero, vector, 2), all);
    } else if (strcmp(call, "vmsplice") == 0) {
        int pipes[2];
        memset(memory, 1, 24 * PAGE);
        expect(pipe(pipes), 0);
        expect(vmsplice(pipes[1], vector, 2, 0), all);
        vector[0].iov_len = 4 * PAGE;
        expect(vmsplice(pipes[1], vector, 1, 0), 4 * PAGE);
    } else if (strcmp(call, "direct") == 0) {
        int file = open(argv[2], O_RDONLY | O_DIRECT);
        expect(preadv(file, vector, 2, 0), all);
    } else {
        static char data[12 * PAGE];
        int ends[2];
        struct mmsghdr messages[1] = {{.msg_hdr = {.msg_iov = vector, .msg_iovlen = 2}}};
        expect(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0);
        expect(send(ends[0], data, sizeof data, 0), all);
        if (strcmp(call, "recvmsg") == 0)
            expect(recvmsg(ends[1], &messages[0].msg_hdr, 0), all);
        else
            expect(recvmmsg(ends[1], messages, 1, 0, NULL), 1);
    }
    return 0;
}
