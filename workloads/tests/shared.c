/*
 * shared: shared memory that children touch first. argv: anonymous, memfd,
 * hugetlb-memfd, hugetlb, posix, sysv, hugetlb-sysv or zero, where each has
 * its own; MB; children. Prints the huge pages of shared memory that this
 * process has.
 */
#include "../common.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

static char name[64];
static int file = -1, segment = -1;
static size_t bytes;
static char *mapping;

static int is(const char *kind, const char *wanted)
{
    return strcmp(kind, wanted) == 0;
}

// Maps the memory at a multiple of 2 MB, whatever chooses addresses.
static char *map(int flags, int descriptor)
{
    size_t more = bytes + 2 * MIB;
    char *free = mmap(NULL, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (free == MAP_FAILED)
        return free;
    char *at = free + (2 * MIB - (uintptr_t)free % (2 * MIB)) % (2 * MIB);
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | flags, descriptor, 0);
}

// Makes the memory, before any fork.
static int make(const char *kind)
{
    if (is(kind, "anonymous") || is(kind, "hugetlb")) {
        mapping = map(MAP_ANONYMOUS | (is(kind, "hugetlb") ? MAP_HUGETLB : 0), -1);
        return mapping != MAP_FAILED;
    }
    if (is(kind, "sysv") || is(kind, "hugetlb-sysv")) {
        int huge = is(kind, "hugetlb-sysv") ? SHM_HUGETLB : 0;
        segment = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600 | huge);
        return segment >= 0;
    }
    if (is(kind, "zero"))
        return (file = open("/dev/zero", O_RDWR)) >= 0;
    if (is(kind, "posix")) {
        snprintf(name, sizeof name, "/contigua-test-%d", getpid());
        file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    } else {
        file = memfd_create("test", is(kind, "hugetlb-memfd") ? MFD_HUGETLB : 0);
    }
    return file >= 0 && ftruncate(file, (off_t)bytes) == 0;
}

// Maps it in the process that calls.
static char *attach(void)
{
    if (mapping)
        return mapping;
    if (segment >= 0)
        return shmat(segment, NULL, 0);
    return map(0, name[0] ? shm_open(name, O_RDWR, 0) : file);
}

static long field(const char *wanted)
{
    char line[256];
    long found = 0;
    FILE *rollup = fopen("/proc/self/smaps_rollup", "r");
    while (rollup && fgets(line, sizeof line, rollup))
        if (strncmp(line, wanted, strlen(wanted)) == 0)
            found = strtol(line + strlen(wanted), NULL, 10);
    if (rollup)
        fclose(rollup);
    return found;
}

static int touch(void)
{
    char *memory = attach();
    if (memory == MAP_FAILED)
        return 0;
    madvise(memory, bytes, MADV_HUGEPAGE);
    for (size_t at = 0; at < bytes; at += 4096)
        memory[at]++;
    return 1;
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "anonymous";
    bytes = (argc > 2 ? strtoul(argv[2], NULL, 10) : 16) << 20;
    int children = argc > 3 ? atoi(argv[3]) : 4, done[2], end[2], failed = 0;
    if (!make(kind) || pipe(done) || pipe(end)) {
        perror(kind);
        return 2;
    }
    for (int child = 0; child < children; child++)
        if (fork() == 0) {
            char was = (char)touch();
            close(end[1]);
            if (write(done[1], &was, 1) != 1 || read(end[0], &was, 1) != 0)
                _exit(1);
            _exit(0);
        }
    for (int child = 0; child < children; child++) {
        char was = 0;
        if (read(done[0], &was, 1) != 1 || !was)
            failed = 1;
    }
    failed |= !touch();
    printf("shmem %ld hugetlb %ld KB\n", field("ShmemPmdMapped:"), field("Shared_Hugetlb:"));
    fflush(stdout);
    close(end[1]);
    while (wait(NULL) > 0) {
    }
    if (name[0])
        shm_unlink(name);
    if (segment >= 0)
        shmctl(segment, IPC_RMID, NULL);
    return failed;
}
