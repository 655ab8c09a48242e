// Maps memory, and prints what became of it.
//
//   mapped two       two mappings of 8 MB, filled; prints kilobytes of huge pages of each, and offsets of both in 2 MB
//   mapped many      10,000 mappings of 8 MB at once, and prints how many succeeded
//   mapped chain     the first one by way of another function
//   mapped fork      a child maps the second one, prints its huge pages and ends with status 3
//   mapped wait      prints a line and waits for a signal
//   mapped code      executes 6 MB of code, if it was built with LARGE_CODE; prints kilobytes of huge pages there
//   mapped end N     ends with status N

#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEVER_INLINE __attribute__((noipa))
enum { BYTES = 8 << 20 };

// Odd sizes in between keep the kernel from aligning the mappings by chance.
NEVER_INLINE static char *map(void) {
    mmap(NULL, 12345, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(1);
    memset(memory, 1, BYTES);
    return memory;
}

NEVER_INLINE static char *map_table(void) {
    char *memory = map();
    memory[1] = 2;
    return memory;
}

static long huge_kilobytes(const char *memory) {
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    uintptr_t start, end;
    int inside = 0;
    long found = -1, value;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2 && strchr(line, '-') < strchr(line, ' '))
            inside = start <= (uintptr_t)memory && (uintptr_t)memory < end;
        else if (inside && sscanf(line, "AnonHugePages: %ld", &value) == 1)
            found = value;
    }
    fclose(file);
    return found;
}

static void print(const char *memory) {
    printf("%ld %ld\n", huge_kilobytes(memory), (long)((uintptr_t)memory % (2 << 20)));
}

#ifdef LARGE_CODE
#ifdef __x86_64__
__asm__(".text\n.globl sled\nsled:\n.fill 6291456, 1, 0x90\nret\n");
#else
__asm__(".text\n.globl sled\nsled:\n.fill 1572864, 4, 0xd503201f\nret\n");
#endif
void sled(void);
static const char *const CODE = (const char *)sled + (3 << 20);
#else
static void sled(void) {}
static const char *const CODE = (const char *)sled;
#endif

static void stop(int signal) { _exit(40 + signal); }

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "two") == 0) {
        char *first = map();
        char *second = map();
        print(first);
        print(second);
    } else if (strcmp(mode, "chain") == 0) {
        char *first = map_table();
        char *second = map();
        print(first);
        print(second);
    } else if (strcmp(mode, "many") == 0) {
        int count = 0;
        for (int i = 0; i < 10000; i++) {
            char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            count += memory != MAP_FAILED;
        }
        printf("%d\n", count);
    } else if (strcmp(mode, "fork") == 0) {
        map();
        pid_t child = fork();
        if (child == 0) {
            print(map());
            fflush(stdout);
            _exit(3);
        }
        int status;
        waitpid(child, &status, 0);
        return WEXITSTATUS(status);
    } else if (strcmp(mode, "wait") == 0) {
        signal(SIGTERM, stop);
        puts("waiting");
        fflush(stdout);
        for (;;) pause();
    } else if (strcmp(mode, "code") == 0) {
        sled();
        printf("%ld\n", huge_kilobytes(CODE));
    } else if (strcmp(mode, "end") == 0)
        return atoi(argv[2]);
    return 0;
}
