/* Run a command with a library preloaded and print what it took: wall seconds, CPU seconds of its
 * own and of the kernel, peak resident kilobytes, page faults. First memory is touched and given
 * back: the host of a virtual machine takes memory that its guest has left free for seconds, and
 * getting it back costs fifty times as much as a fault, whoever comes first. A small process of its
 * own, because a child's peak begins with its parent's. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void warm(size_t bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    madvise(memory, bytes, MADV_HUGEPAGE);
    for (size_t at = 0; at < bytes; at += 4096) ((volatile char *)memory)[at] = 1;
    munmap(memory, bytes);
}

int main(int count, char **arguments) {
    struct timespec start, end;
    struct rusage usage;
    int status;
    if (count < 3) return 2;
    pid_t warmer = fork();
    if (!warmer) {
        warm((size_t)512 << 20);
        _exit(0);
    }
    waitpid(warmer, &status, 0);
    clock_gettime(CLOCK_MONOTONIC, &start);
    pid_t child = fork();
    if (!child) {
        if (strcmp(arguments[1], "-")) setenv("LD_PRELOAD", arguments[1], 1);
        freopen("/dev/null", "w", stdout);
        execvp(arguments[2], arguments + 2);
        _exit(127);
    }
    if (child < 0 || wait4(child, &status, 0, &usage) < 0 || status) return 1;
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.6f %.6f %.6f %ld %ld\n",
           (double)(end.tv_sec - start.tv_sec) + (end.tv_nsec - start.tv_nsec) * 1e-9,
           (double)usage.ru_utime.tv_sec + usage.ru_utime.tv_usec * 1e-6,
           (double)usage.ru_stime.tv_sec + usage.ru_stime.tv_usec * 1e-6, usage.ru_maxrss,
           usage.ru_minflt);
    return 0;
}
