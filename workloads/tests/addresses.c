// Maps memory in many ways and prints where each mapping was put.
//   addresses [CASE [FILE]]
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KIB = 1 << 10, MIB = 1 << 20 };

static void say(const char *what, const void *address)
{
    if (address == MAP_FAILED)
        printf("%s: failed\n", what);
    else
        printf("%s: %p\n", what, address);
}

static void *map(const char *what, void *hint, size_t bytes, int protection, int flags, int file,
                 off_t offset)
{
    void *at = mmap(hint, bytes, protection, flags, file, offset);
    say(what, at);
    return at;
}

static void *anonymous(const char *what, size_t bytes)
{
    return map(what, NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void neighbors(void)
{
    for (int i = 0; i < 4; i++)
        anonymous("4 KB", 4 * KIB);
    for (int i = 0; i < 4; i++)
        anonymous("2 MB", 2 * MIB);
    for (int i = 0; i < 3; i++)
        anonymous("2 MB and 4 KB", 2 * MIB + 4 * KIB);
    anonymous("64 MB", 64 * MIB);
    anonymous("3 MB", 3 * MIB);
    anonymous("4 MB", 4 * MIB);
    for (int i = 0; i < 2; i++)
        map("2 MB for a stack", NULL, 2 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
            -1, 0);
    map("2 MB shared", NULL, 2 * MIB, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    map("1 GB reserved", NULL, 1024 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1, 0);
#ifdef MAP_32BIT
    map("low", NULL, 64 * KIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
#endif
}

static void touched(void)
{
    for (int i = 0; i < 32; i++) {
        volatile char *at = anonymous("2 MB", 2 * MIB);
        at[2 * MIB - 1] = 1;
    }
}

static void holes(void)
{
    char *at[8];
    for (int i = 0; i < 8; i++)
        at[i] = anonymous("1 MB", MIB);
    munmap(at[2], MIB);
    munmap(at[5] + 64 * KIB, MIB / 2);
    munmap(at[6], MIB);
    anonymous("256 KB into a hole", 256 * KIB);
    anonymous("1 MB into a hole", MIB);
    anonymous("1 MB below", MIB);
    anonymous("512 KB into a hole", 512 * KIB);
    munmap(at[0], MIB);
    anonymous("2 MB below", 2 * MIB);
    anonymous("8 KB into the first hole", 8 * KIB);
    // At the hint while it is free, else as without one.
    map("at a hint", at[0], 16 * KIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    map("not at a hint", at[0], 16 * KIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    map("fixed", at[1], 16 * KIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static void remaps(void)
{
    char *top = anonymous("1 MB", MIB), *next = anonymous("1 MB", MIB);
    say("grown below another", next = mremap(next, MIB, 2 * MIB, MREMAP_MAYMOVE));
    say("shrunk", next = mremap(next, 2 * MIB, MIB / 2, MREMAP_MAYMOVE));
    say("grown in place", next = mremap(next, MIB / 2, MIB, MREMAP_MAYMOVE));
    say("cannot grow", mremap(top, MIB, 64 * MIB, 0));
    say("grown to 6 MB", top = mremap(top, MIB, 6 * MIB, MREMAP_MAYMOVE));
    top[5 * MIB] = 1;
    anonymous("1 MB after", MIB);
    say("moved by hand", mremap(next, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, top));
    anonymous("512 KB after", MIB / 2);
}

static void files(const char *name)
{
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, 32 * MIB) != 0)
        exit(3);
    unlink(name);
    map("1 MB of a file", NULL, MIB, PROT_READ, MAP_PRIVATE, file, 0);
    map("8 MB of a file", NULL, 8 * MIB, PROT_READ, MAP_PRIVATE, file, 0);
    map("8 MB, shared", NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    map("5 MB from 64 KB on", NULL, 5 * MIB, PROT_READ, MAP_PRIVATE, file, 64 * KIB);
    map("2 MB from 64 KB on", NULL, 2 * MIB, PROT_READ, MAP_PRIVATE, file, 64 * KIB);
    int memory = memfd_create("memory", 0);
    if (memory < 0 || ftruncate(memory, 8 * MIB) != 0)
        exit(3);
    map("8 MB of a memfd", NULL, 8 * MIB, PROT_READ, MAP_SHARED, memory, 0);
    int id = shmget(IPC_PRIVATE, 3 * MIB, 0600);
    char *shared = shmat(id, NULL, 0);
    say("3 MB of System V", shared);
    shmctl(id, IPC_RMID, NULL);
    anonymous("1 MB", MIB);
    shmdt(shared);
    anonymous("1 MB into the hole", MIB);
}

// Shared memory, which `shmem_enabled` aligns.
static void shared_memory(void)
{
    int flags = MAP_SHARED | MAP_ANONYMOUS;
    for (int i = 0; i < 2; i++)
        map("2 MB", NULL, 2 * MIB, PROT_READ, flags, -1, 0);
    char *whole = map("5 MB", NULL, 5 * MIB, PROT_READ, flags, -1, 0);
    map("1 MB", NULL, MIB, PROT_READ, flags, -1, 0);
    map("2 MB and 4 KB", NULL, 2 * MIB + 4 * KIB, PROT_READ, flags, -1, 0);
    map("not at a hint", whole, 2 * MIB, PROT_READ, flags, -1, 0);
    int memory = memfd_create("memory", 0), null = open("/dev/zero", O_RDWR);
    char name[32];
    snprintf(name, sizeof name, "/contigua-%d", getpid());
    int posix = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (memory < 0 || null < 0 || posix < 0 || shm_unlink(name) != 0 ||
        ftruncate(memory, 16 * MIB) != 0 || ftruncate(posix, 16 * MIB) != 0)
        exit(3);
    map("8 MB of a memfd", NULL, 8 * MIB, PROT_READ, MAP_SHARED, memory, 0);
    map("8 MB, private", NULL, 8 * MIB, PROT_READ, MAP_PRIVATE, memory, 0);
    map("3 MB from 64 KB on", NULL, 3 * MIB, PROT_READ, MAP_SHARED, memory, 64 * KIB);
    map("5 MB from 64 KB on", NULL, 5 * MIB, PROT_READ, MAP_SHARED, memory, 64 * KIB);
    map("2 MB from 6 MB on", NULL, 2 * MIB, PROT_READ, MAP_SHARED, memory, 6 * MIB);
    map("5 MB of /dev/shm", NULL, 5 * MIB, PROT_READ, MAP_SHARED, posix, 0);
    map("5 MB of /dev/zero", NULL, 5 * MIB, PROT_READ, MAP_SHARED, null, 0);
    map("5 MB of /dev/zero, private", NULL, 5 * MIB, PROT_READ, MAP_PRIVATE, null, 0);
    for (int i = 0; i < 2; i++) {
        int id = shmget(IPC_PRIVATE, 3 * MIB + i, 0600);
        say("3 MB of System V", shmat(id, NULL, 0));
        shmctl(id, IPC_RMID, NULL);
    }
    say("grown to 7 MB", mremap(whole, 5 * MIB, 7 * MIB, MREMAP_MAYMOVE));
    anonymous("1 MB", MIB);
}

// Pages of HugeTLB: seven of 2 MB.
static void hugetlb(void)
{
    int both = PROT_READ | PROT_WRITE;
    anonymous("1 MB", MIB);
    map("3 MB", NULL, 3 * MIB, both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    map("2 MB, shared", NULL, 2 * MIB, both, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    int memory = memfd_create("memory", MFD_HUGETLB);
    if (memory < 0 || ftruncate(memory, 4 * MIB) != 0)
        exit(3);
    map("4 MB of a memfd", NULL, 4 * MIB, both, MAP_SHARED, memory, 0);
    int id = shmget(IPC_PRIVATE, 3 * MIB, SHM_HUGETLB | 0600);
    char *segment = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
    say("3 MB of System V", segment);
    if (segment == MAP_FAILED)
        exit(3);
    memset(segment, 1, 3 * MIB);
    anonymous("1 MB below", MIB);
    shmdt(segment);
    anonymous("3 MB into the hole", 3 * MIB);
}

static sem_t ready;

static void *thread(void *nothing)
{
    char *volatile block = malloc(100 * KIB);
    block[0] = 1;
    // The next thread begins when this one has its memory.
    sem_post(&ready);
    for (;;)
        pause();
    return nothing;
}

static void threads(size_t stack, size_t guard, int count)
{
    pthread_t id[64];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack);
    pthread_attr_setguardsize(&attributes, guard);
    sem_init(&ready, 0, 0);
    for (int i = 0; i < count; i++) {
        pthread_create(&id[i], &attributes, thread, NULL);
        sem_wait(&ready);
        pthread_attr_t own;
        void *start;
        size_t bytes;
        pthread_getattr_np(id[i], &own);
        pthread_attr_getstack(&own, &start, &bytes);
        say("stack", start);
    }
}

static void heap(void)
{
    char *at[6];
    char *before = sbrk(0);
    for (int i = 0; i < 6; i++) {
        at[i] = malloc((size_t)300 * KIB << i);
        say("malloc", at[i]);
    }
    free(at[1]);
    free(at[4]);
    say("malloc again", malloc(250 * KIB));
    say("realloc", realloc(at[5], 40 * MIB));
    say("heap before", before);
    say("heap after", sbrk(0));
}

static void forked(void)
{
    anonymous("1 MB", MIB);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        anonymous("1 MB of the child", MIB);
        anonymous("2 MB of the child", 2 * MIB);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    anonymous("1 MB of the parent", MIB);
}

// What the loader allocates depends on the processor and on the vDSO: fills the holes between its mappings.
static void fill(void)
{
    for (int i = 0; i < 4096; i++) {
        char *at = mmap(NULL, 4 * KIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if ((uintptr_t)at <= getauxval(AT_BASE) - 4 * MIB)
            break;
    }
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "neighbors";
    setvbuf(stdout, NULL, _IOFBF, 64 * KIB);
    say("interpreter", (void *)getauxval(AT_BASE));
    say("program", (void *)(getauxval(AT_PHDR) & ~0xfffUL));
    say("heap", sbrk(0));
    // The environment lies at the end of the stack.
    say("stack", (void *)((uintptr_t)environ & ~0xfffffUL));
    fill();
    if (!strcmp(which, "neighbors"))
        neighbors();
    else if (!strcmp(which, "touched"))
        touched();
    else if (!strcmp(which, "holes"))
        holes();
    else if (!strcmp(which, "remaps"))
        remaps();
    else if (!strcmp(which, "files"))
        files(argc > 2 ? argv[2] : "addresses.tmp");
    else if (!strcmp(which, "shared"))
        shared_memory();
    else if (!strcmp(which, "hugetlb"))
        hugetlb();
    else if (!strcmp(which, "threads"))
        threads(8 * MIB, 4 * KIB, 8);
    else if (!strcmp(which, "stacks"))
        threads(2 * MIB, 0, 32);
    else if (!strcmp(which, "heap"))
        heap();
    else if (!strcmp(which, "fork"))
        forked();
    else
        return 2;
    return 0;
}
