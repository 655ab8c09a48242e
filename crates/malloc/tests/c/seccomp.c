/* May a program, and the child of one, forbid itself every system call but those that any malloc
 * needs? Daemons do so at their start, for good: the forbidden ends the process. */
#include "common.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

static void confine(void) {
    static const int allowed[] = {
        SYS_mmap,      SYS_munmap,        SYS_mremap, SYS_madvise,    SYS_mprotect,
        SYS_brk,       SYS_futex,         SYS_write,  SYS_getrandom,  SYS_clock_nanosleep,
        SYS_nanosleep, SYS_clock_gettime, SYS_exit,   SYS_exit_group,
    };
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter filter[2 * COUNT + 2];
    int length = 0;
    filter[length++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++) {
        filter[length++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {.len = length, .filter = filter};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void work(void) {
    static void *kept[2000];
    uint64_t random = 5;
    /* Long enough for whatever is done once a second. */
    for (int round = 0; round < 26; round++) {
        struct timespec pause = {0, 100000000};
        nanosleep(&pause, NULL);
        for (int i = 0; i < 20000; i++) {
            int at = next_random(&random) % 2000;
            free(kept[at]);
            kept[at] = malloc(next_random(&random) % (i % 100 ? 3000 : 700000));
            CHECK(kept[at]);
        }
    }
    malloc_usable_size(kept[0]);
    CHECK(!opaque(malloc((size_t)1 << 46)) && errno == ENOMEM);
}

static void finish(const char *who, pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status) {
        fprintf(stderr, "%s ended with status %x\n", who, status);
        _exit(1);
    }
}

int main(void) {
    pid_t old, young = fork();
    if (!young) {
        confine();
        work();
        _exit(0);
    }
    struct timespec pause = {1, 200000000};
    nanosleep(&pause, NULL);
    for (int i = 0; i < 2000; i++) free(opaque(malloc(400000)));
    if (!(old = fork())) {
        confine();
        work();
        _exit(0);
    }
    finish("a child of a young process", young);
    finish("a child of an old process", old);
    confine();
    work();
    _exit(0);
}
