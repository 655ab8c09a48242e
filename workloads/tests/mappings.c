// Changes memory by the system calls of a case, and ends with it.
//   mappings CASE
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { KIB = 1 << 10, MIB = 1 << 20, HUGE = 2 * MIB, BOTH = PROT_READ | PROT_WRITE };

static void check(int is_right, const char *what)
{
    if (!is_right) {
        perror(what);
        exit(3);
    }
}

static char *map_at(void *at, size_t bytes, int protection, int flags)
{
    char *found = mmap(at, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    check(found != MAP_FAILED, "mmap");
    return found;
}

// Memory that is a multiple of 2 MB, whose parts of 2 MB can be huge pages.
static char *advised(size_t bytes)
{
    char *at = map_at(NULL, bytes, BOTH, 0);
    check(madvise(at, bytes, MADV_HUGEPAGE) == 0, "MADV_HUGEPAGE");
    return at;
}

static char *touch(char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 4 * KIB)
        *(volatile char *)(at + i) = 1;
    return at;
}

static void heap(void)
{
    char *at = sbrk(0);
    size_t gap = -(size_t)at % HUGE;
    check(sbrk(gap + 9 * MIB) == at, "sbrk");
    check(madvise(at + gap, 9 * MIB, MADV_HUGEPAGE) == 0, "MADV_HUGEPAGE");
    touch(at + gap, 9 * MIB);
    // 3 MB are left: the second huge page is cut in two.
    check(sbrk(-6 * MIB) != (void *)-1, "sbrk");
}

static void reserved(void)
{
    char *at = map_at(NULL, 64 * MIB, PROT_NONE, MAP_NORESERVE);
    check(mprotect(at + 8 * MIB, 8 * MIB, BOTH) == 0, "mprotect");
    check(mprotect(at + 16 * MIB, 1 * MIB, BOTH) == 0, "mprotect");
    check(madvise(at, 64 * MIB, MADV_HUGEPAGE) == 0, "MADV_HUGEPAGE");
    touch(at + 8 * MIB, 9 * MIB);
    // Given back, but still reserved.
    check(map_at(at + 8 * MIB, 2 * MIB, PROT_NONE, MAP_NORESERVE | MAP_FIXED) != NULL, "mmap");
}

static void arenas(void)
{
    char *at = map_at(NULL, 64 * MIB, PROT_NONE, 0);
    for (int i = 0; i < 4; i++) {
        map_at(at + i * 4 * MIB, 4 * MIB, BOTH, MAP_FIXED);
        check(madvise(at + i * 4 * MIB, 4 * MIB, MADV_HUGEPAGE) == 0, "MADV_HUGEPAGE");
    }
    touch(at, 15 * MIB);
}

static void refused(void)
{
    char *at = advised(16 * MIB);
    check(madvise(at + 5 * MIB, 4 * MIB, MADV_NOHUGEPAGE) == 0, "MADV_NOHUGEPAGE");
    touch(at, 16 * MIB);
}

static void collapsed(void)
{
    char *at = map_at(NULL, 16 * MIB, BOTH, 0);
    check(madvise(at, 16 * MIB, MADV_NOHUGEPAGE) == 0, "MADV_NOHUGEPAGE");
    touch(at, 12 * MIB);
    madvise(at, 2 * MIB, MADV_COLLAPSE); // refused
    check(madvise(at + 2 * MIB, 14 * MIB, MADV_HUGEPAGE) == 0, "MADV_HUGEPAGE");
    check(madvise(at + 2 * MIB, 4 * MIB, MADV_COLLAPSE) == 0, "MADV_COLLAPSE");
}

static void disabled(void)
{
    // QEMU says that it cannot.
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    touch(advised(4 * MIB), 4 * MIB);
    pid_t child = fork();
    if (child == 0) {
        touch(advised(4 * MIB), 4 * MIB);
        exit(0);
    }
    check(waitpid(child, NULL, 0) == child, "waitpid");
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    touch(advised(8 * MIB), 8 * MIB);
}

static void remapped(void)
{
    // To other multiples of 2 MB, and 4 KB beside them.
    char *space = map_at(NULL, 64 * MIB, PROT_NONE, 0);
    char *at = touch(advised(4 * MIB), 4 * MIB);
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    check(mremap(at, 4 * MIB, 4 * MIB, flags, space + 8 * MIB) != MAP_FAILED, "mremap");
    at = touch(advised(4 * MIB), 4 * MIB);
    check(mremap(at, 4 * MIB, 4 * MIB, flags, space + 16 * MIB + 4 * KIB) != MAP_FAILED, "mremap");
    // Shrunk within a huge page, and grown.
    at = touch(advised(4 * MIB), 4 * MIB);
    check(mremap(at, 4 * MIB, 3 * MIB, 0) == at, "mremap");
    at = touch(advised(2 * MIB), 2 * MIB);
    at = mremap(at, 2 * MIB, 8 * MIB, MREMAP_MAYMOVE);
    check(at != MAP_FAILED, "mremap");
    touch(at, 8 * MIB);
}

static void kept(void)
{
    char *at = touch(advised(4 * MIB), 4 * MIB);
    char *to = mremap(at, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    check(to != MAP_FAILED && to != at, "MREMAP_DONTUNMAP");
    touch(at, 2 * MIB);
}

static void unreplaced(void)
{
    char *at = touch(advised(4 * MIB), 4 * MIB);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    // QEMU 7.2 does what Linux did before 4.17.
    void *on_top = mmap(at + MIB, MIB, BOTH, flags, -1, 0);
    check(on_top == MAP_FAILED ? errno == EEXIST : on_top != at + MIB, "MAP_FIXED_NOREPLACE");
    if (on_top != MAP_FAILED)
        munmap(on_top, MIB);
    check(mmap(at - 8 * MIB, MIB, BOTH, flags, -1, 0) == at - 8 * MIB, "MAP_FIXED_NOREPLACE");
    touch(at - 8 * MIB, MIB);
}

static void discarded(void)
{
    char *at = touch(advised(8 * MIB), 8 * MIB);
    check(madvise(at + MIB, 4 * MIB, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    touch(at + 2 * MIB, 2 * MIB);
}

static void protected(void)
{
    char *at = touch(advised(8 * MIB), 8 * MIB);
    check(mprotect(at + MIB, 4 * KIB, PROT_NONE) == 0, "mprotect");
    check(munmap(at + 5 * MIB, 4 * KIB) == 0, "munmap");
}

static void forked(void)
{
    char *at = touch(advised(8 * MIB), 8 * MIB);
    pid_t child = fork();
    if (child == 0) {
        at[0] = 2; // in a copy
        exit(0);
    }
    check(waitpid(child, NULL, 0) == child, "waitpid");
    at[2 * MIB] = 2; // nobody else's again
}

static void shared(void)
{
    int file = memfd_create("shared", 0);
    check(file >= 0 && ftruncate(file, 8 * MIB) == 0, "memfd_create");
    char *first = mmap(NULL, 8 * MIB, BOTH, MAP_SHARED, file, 0);
    char *second = mmap(NULL, 4 * MIB, PROT_READ, MAP_SHARED, file, 4 * MIB);
    check(first != MAP_FAILED && second != MAP_FAILED, "mmap");
    touch(first, 8 * MIB);
    volatile char seen = second[0];
    (void)seen;
    int id = shmget(IPC_PRIVATE, 3 * MIB, 0600);
    char *segment = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
    check(segment != (void *)-1, "shmat");
    touch(segment, 3 * MIB);
    char name[32];
    snprintf(name, sizeof name, "/contigua-%d", getpid());
    file = shm_open(name, O_RDWR | O_CREAT, 0600);
    check(file >= 0 && shm_unlink(name) == 0 && ftruncate(file, 4 * MIB) == 0, "shm_open");
    char *posix = mmap(NULL, 4 * MIB, BOTH, MAP_SHARED, file, 0);
    check(posix != MAP_FAILED, "mmap");
    touch(posix, 4 * MIB);
    touch(mmap(NULL, 2 * MIB, BOTH, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 2 * MIB);
}

// Memory of /dev/zero: each shared mapping is shared memory of its own, each private one anonymous.
static void zeros(void)
{
    int file = open("/dev/zero", O_RDWR);
    int kinds[] = {MAP_SHARED, MAP_PRIVATE};
    char *at[2];
    for (int i = 0; i < 2; i++) {
        at[i] = mmap(NULL, 6 * MIB, BOTH, kinds[i], file, 0);
        check(at[i] != MAP_FAILED, "mmap");
        check(madvise(at[i], 6 * MIB, MADV_HUGEPAGE) == 0, "MADV_HUGEPAGE");
    }
    pid_t child = fork();
    if (child == 0) {
        touch(at[0], 4 * MIB);
        touch(at[1], 2 * MIB);
        exit(0);
    }
    check(waitpid(child, NULL, 0) == child, "waitpid");
    touch(at[0], 5 * MIB);
    touch(at[1], 5 * MIB);
    // The hole is a mapping's that has to move.
    char *hole = mremap(at[1], 6 * MIB, 2 * MIB, 0);
    check(hole == at[1], "mremap");
    check(mmap(hole + 2 * MIB, 4 * KIB, PROT_NONE, MAP_PRIVATE | MAP_FIXED, file, 0) != MAP_FAILED,
          "mmap");
    touch(mremap(hole, 2 * MIB, 4 * MIB, MREMAP_MAYMOVE), 4 * MIB);
}

// Pages of HugeTLB, in lengths that are no multiples of theirs: at most seven of 2 MB at a time.
static void hugetlb(void)
{
    int flags = MAP_ANONYMOUS | MAP_HUGETLB, file = memfd_create("huge", MFD_HUGETLB);
    check(file >= 0 && ftruncate(file, 4 * MIB) == 0, "memfd_create");
    struct {
        int flags, file;
    } kinds[] = {{MAP_PRIVATE | flags, -1}, {MAP_SHARED, file}, {MAP_PRIVATE, file}};
    for (int i = 0; i < 3; i++) {
        char *at = mmap(NULL, 3 * MIB, BOTH, kinds[i].flags, kinds[i].file, 0);
        check(at != MAP_FAILED, "mmap");
        touch(at, 4 * MIB);
        check(munmap(at, 3 * MIB) != 0 && errno == EINVAL, "munmap");
        check(munmap(at + MIB, 3 * MIB) != 0 && errno == EINVAL, "munmap");
        check(mprotect(at, 3 * MIB, PROT_READ) != 0 && errno == EINVAL, "mprotect");
        check(madvise(at + MIB, MIB, MADV_DONTNEED) != 0 && errno == EINVAL, "MADV_DONTNEED");
        char *space = map_at(NULL, 8 * MIB, PROT_NONE, 0);
        char *to = space + -(size_t)space % HUGE;
        int moves = MREMAP_MAYMOVE | MREMAP_FIXED;
        check(mremap(at, 3 * MIB, 3 * MIB, moves, to) == to, "mremap");
        if (i == 0)
            check(madvise(to, 3 * MIB, MADV_DONTNEED) == 0, "MADV_DONTNEED");
        else
            check(mremap(to, 4 * MIB, MIB, 0) == to, "mremap");
        check(munmap(space, to - space) == 0 || to == space, "munmap");
        // Below the whole, or in the hole.
        touch(map_at(NULL, MIB, BOTH, 0), MIB);
    }
}

// Frames of 64 KB, touched one after the other.
static int deep(int frames)
{
    volatile char frame[64 * KIB];
    frame[0] = frame[sizeof frame - 1] = 1;
    return frames ? deep(frames - 1) + frame[0] : frame[0];
}

static void stack(void)
{
    check(deep(100) == 101, "deep");
}

// An array whose first byte is touched before the rest.
static void array(void)
{
    char large[7 * MIB];
    touch(large, sizeof large);
}

static void asked(void)
{
    char parameters[120] = {0};
    unsigned long context = 0;
    printf("%d %d %d\n", syscall(SYS_io_uring_setup, 4, parameters) >= 0,
           syscall(SYS_io_setup, 4, &context) >= 0, syscall(SYS_userfaultfd, 0) >= 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"heap", heap},           {"reserved", reserved},   {"arenas", arenas},
    {"refused", refused},     {"collapsed", collapsed}, {"disabled", disabled},
    {"remapped", remapped},   {"kept", kept},           {"unreplaced", unreplaced},
    {"discarded", discarded}, {"protected", protected}, {"forked", forked},
    {"shared", shared},       {"zeros", zeros},         {"hugetlb", hugetlb},
    {"stack", stack},         {"array", array},         {"asked", asked},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (argc == 2 && strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    return 2;
}
