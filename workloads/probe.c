/*
 * probe: times of this computer, for `contigua machines measure`. Each
 * measure is one process, which prints "KEY VALUE" lines: one "ns" line for
 * each repetition, nanoseconds of this thread's CPU time for each operation.
 * Unlike the other programs here, its output is different each time.
 *
 * Chases follow a random cycle of pointers, one for
 * each --step bytes of --size, so that each load waits for the one before
 * and no prefetcher knows the next. With a step of a page or more the line
 * within the page differs from page to page, so that lines do not compete
 * for the same sets of a cache. A cache that others use, too, keeps more of
 * what is used more often: --parallel follows eight such chases at once, and
 * reports a load of each as one operation.
 */
#include "common.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE (4 * KIB)
#define HUGE_PAGE (2 * MIB)
#define LINE UINT64_C(64)
#define CHAINS 8
#define FRAME_BITS ((UINT64_C(1) << 55) - 1) /* of an entry: admin-guide/mm/pagemap.rst */
#define ZEROED (1 * MIB)                     /* what zeroing and copying go over: within an L2 */

static uint64_t size = 1 * MIB, step = LINE, operations = 200000, repeats = 5, seed = 1;
static uint64_t together = 1, taken = 128;
static bool huge, file, parallel;

static double now(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
        fail("clock_gettime: %s", strerror(errno));
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void report(double began, uint64_t count)
{
    printf("ns %.6f\n", (now() - began) / (double)count);
}

/* Memory of its own mapping, which begins with a huge page. */
static char *map(uint64_t bytes, int flags, int descriptor)
{
    char *all = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        fail("cannot map %" PRIu64 " bytes: %s", bytes, strerror(errno));
    char *start = (char *)(((uintptr_t)all + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    munmap(all, bytes + HUGE_PAGE);
    start = mmap(start, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, descriptor, 0);
    if (start == MAP_FAILED)
        fail("cannot map %" PRIu64 " bytes: %s", bytes, strerror(errno));
    if (descriptor < 0 && !(flags & MAP_POPULATE) &&
        madvise(start, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0 && huge)
        fail("madvise(MADV_HUGEPAGE): %s", strerror(errno));
    return start;
}

static char *map_private(void)
{
    return map(size, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void unmap(char *memory)
{
    if (munmap(memory, size) != 0)
        fail("munmap: %s", strerror(errno));
}

/* KiB of huge pages among the mapping that holds an address. */
static uint64_t huge_kib(const char *memory)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    bool inside = false;
    uint64_t kib = 0, first, last;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &first, &last) == 2)
            inside = (uintptr_t)memory >= first && (uintptr_t)memory < last;
        else if (inside && sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1)
            break;
    }
    if (maps != NULL)
        fclose(maps);
    return kib;
}

/* The i-th place of a chase. */
static void **place(char *memory, uint64_t i)
{
    uint64_t offset = 0;
    if (step >= PAGE) {
        /* All sets of an L1 alike, and of larger caches whose sets pages select, too. */
        offset = (i + i / (PAGE / LINE)) % (PAGE / LINE) * LINE;
        if (step > PAGE)
            offset += mix64(i) % (step / PAGE) * PAGE;
    }
    return (void **)(memory + i * step + offset);
}

static int by_number(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static void shuffle(uint64_t *order, uint64_t count, uint64_t *state)
{
    for (uint64_t i = count; i > 1; i--) {
        uint64_t j = random_below(state, i), swap = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swap;
    }
}

/* Links all places to one cycle, in which --together lines of a page follow each other. */
static void **link_places(char *memory, uint64_t count)
{
    uint64_t state = seed, lines = step < PAGE ? PAGE / step : 1, *order = allocate(count, 8);
    for (uint64_t i = 0; i < count; i++)
        order[i] = i;
    uint64_t visits = count / together, *visit = allocate(visits, 8);
    for (uint64_t i = 0; together > 1 && i < count; i += lines)
        shuffle(order + i, lines, &state);
    for (uint64_t i = 0; i < visits; i++)
        visit[i] = i;
    shuffle(visit, visits, &state);
    void **first = place(memory, order[visit[0] * together]);
    void **last = first;
    for (uint64_t i = 1; i < count; i++) {
        uint64_t next = visit[i / together] * together + i % together;
        *last = place(memory, order[next]);
        last = *last;
    }
    *last = first;
    free(visit);
    free(order);
    return first;
}

static void **follow(void **at, uint64_t hops)
{
    for (uint64_t i = 0; i < hops; i++)
        at = *(void ***)at;
    __asm__ volatile("" : "+r"(at));
    return at;
}

/* Follows pointers from as many places of the cycle, equally far apart, as there are chains. */
static void follow_all(void ***at, uint64_t hops)
{
    for (uint64_t i = 0; i < hops; i++) {
#pragma GCC unroll 8
        for (int chain = 0; chain < CHAINS; chain++)
            at[chain] = *at[chain];
    }
    __asm__ volatile("" : : "r"(at) : "memory");
}

static void chase(void)
{
    uint64_t count = size / step;
    if (count < 2)
        usage_error("--size must be at least two steps");
    char *memory = map_private();
    /* In order, as programs touch memory first. */
    for (uint64_t at = 0; at < size; at += step < PAGE ? PAGE : step)
        *(volatile char *)(memory + at) = 1;
    void **at = link_places(memory, count);
    printf("huge_kib %" PRIu64 "\n", huge_kib(memory));
    uint64_t warming = count < 4 * operations ? 2 * count : operations;
    if (!parallel) {
        at = follow(at, warming);
        for (uint64_t i = 0; i < repeats; i++) {
            double began = now();
            at = follow(at, operations);
            report(began, operations);
        }
        return;
    }
    void **places[CHAINS];
    for (int chain = 0; chain < CHAINS; chain++) {
        places[chain] = at;
        at = follow(at, count / CHAINS);
    }
    follow_all(places, warming / CHAINS);
    for (uint64_t i = 0; i < repeats; i++) {
        double began = now();
        follow_all(places, operations / CHAINS);
        report(began, operations / CHAINS);
    }
}

/* Loads that wait for nothing but their place in the processor's queues. */
static void loads(void)
{
    char *memory = map_private();
    uint64_t lines = size / LINE, state = seed, sum = 0;
    memset(memory, 1, size);
    printf("huge_kib %" PRIu64 "\n", huge_kib(memory));
    for (uint64_t i = 0; i < repeats; i++) {
        double began = now();
        for (uint64_t n = 0; n < operations; n++)
            sum += *(const volatile uint64_t *)(memory + random_below(&state, lines) * LINE);
        report(began, operations);
    }
    if (sum == 0)
        fail("validation failed: memory is zero");
}

/* Lines in order, which prefetchers know before they are loaded. */
static void stream(void)
{
    char *memory = map_private();
    uint64_t lines = size / LINE, at = 0, sum = 0;
    memset(memory, 1, size);
    printf("huge_kib %" PRIu64 "\n", huge_kib(memory));
    for (uint64_t i = 0; i < repeats; i++) {
        double began = now();
        for (uint64_t n = 0; n < operations; n++) {
            sum += *(const volatile uint64_t *)(memory + at * LINE);
            at = at + 1 < lines ? at + 1 : 0;
        }
        report(began, operations);
    }
    if (sum == 0)
        fail("validation failed: memory is zero");
}

/* A chain of additions: a cycle each. */
static void cycle(void)
{
    for (uint64_t i = 0; i < repeats; i++) {
        uint64_t a = seed, b = seed | 1;
        double began = now();
        for (uint64_t n = 0; n < operations; n++) {
#if defined __x86_64__
            __asm__ volatile("add %1, %0\nadd %1, %0\nadd %1, %0\nadd %1, %0\n"
                             "add %1, %0\nadd %1, %0\nadd %1, %0\nadd %1, %0\n"
                             : "+r"(a)
                             : "r"(b));
#elif defined __aarch64__
            __asm__ volatile("add %0, %0, %1\nadd %0, %0, %1\nadd %0, %0, %1\nadd %0, %0, %1\n"
                             "add %0, %0, %1\nadd %0, %0, %1\nadd %0, %0, %1\nadd %0, %0, %1\n"
                             : "+r"(a)
                             : "r"(b));
#else
#error "write a chain of eight additions for this processor"
#endif
        }
        report(began, 8 * operations);
    }
}

/* A branch on each byte, of which --taken of 256 are set, in no order that could be predicted. */
static void branches(void)
{
    char *memory = map_private();
    uint64_t state = seed, at = 0;
    for (uint64_t i = 0; i < size; i++)
        memory[i] = random_below(&state, 256) < taken;
    for (uint64_t i = 0; i < repeats; i++) {
        double began = now();
        for (uint64_t n = 0; n < operations; n++) {
            if (memory[at])
                __asm__ volatile("" : "+r"(state)); /* what is not done ahead of the branch */
            at = at + 1 < size ? at + 1 : 0;
        }
        report(began, operations);
    }
}

/* The 2 MiB blocks of physical memory that hold its pages; 0 where frames are not shown: to root. */
static void frames(void)
{
    char *memory = map_private();
    uint64_t count = size / PAGE, *block = allocate(count, 8), blocks = 0;
    for (uint64_t i = 0; i < count; i++)
        *(volatile char *)(memory + i * PAGE) = 1;
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    off_t first = (off_t)((uintptr_t)memory / PAGE * 8);
    for (uint64_t i = 0; i < count; i++) {
        if (pagemap < 0 || pread(pagemap, &block[i], 8, first + (off_t)i * 8) != 8)
            fail("/proc/self/pagemap: %s", strerror(errno));
        block[i] = (block[i] & FRAME_BITS) / (HUGE_PAGE / PAGE);
    }
    close(pagemap);
    qsort(block, count, 8, by_number);
    for (uint64_t i = 0; i < count; i++)
        blocks += block[i] != 0 && (i == 0 || block[i] != block[i - 1]);
    free(block);
    printf("blocks %" PRIu64 "\n", blocks);
}

/* First touches; a huge page each with --huge. */
static void fault(void)
{
    uint64_t page = huge ? HUGE_PAGE : PAGE;
    for (uint64_t i = 0; i < repeats; i++) {
        char *memory = map_private();
        double began = now();
        for (uint64_t at = 0; at < size; at += step < page ? page : step)
            *(volatile char *)(memory + at) = 1;
        report(began, size / (step < page ? page : step));
        if (i == 0)
            printf("huge_kib %" PRIu64 "\n", huge_kib(memory));
        unmap(memory);
    }
}

static void populate(void)
{
    for (uint64_t i = 0; i < repeats; i++) {
        double began = now();
        char *memory = map(size, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1);
        report(began, size / PAGE);
        unmap(memory);
    }
}

/* With --file the pages are a file's, and stay when they are unmapped. */
static void unmapping(void)
{
    int descriptor = -1;
    if (file) {
        descriptor = memfd_create("probe", 0);
        if (descriptor < 0 || ftruncate(descriptor, (off_t)size) != 0)
            fail("memfd_create: %s", strerror(errno));
    }
    for (uint64_t i = 0; i < repeats; i++) {
        char *memory = file ? map(size, MAP_SHARED, descriptor) : map_private();
        for (uint64_t at = 0; at < size; at += PAGE)
            *(volatile char *)(memory + at) = 1;
        double began = now();
        unmap(memory);
        report(began, size / PAGE);
    }
}

static void protect(void)
{
    char *memory = map_private();
    for (uint64_t i = 0; i < repeats; i++) {
        for (uint64_t at = 0; at < size; at += PAGE)
            *(volatile char *)(memory + at) = 1;
        double began = now();
        if (mprotect(memory, size, PROT_READ) != 0)
            fail("mprotect: %s", strerror(errno));
        report(began, size / PAGE);
        if (mprotect(memory, size, PROT_READ | PROT_WRITE) != 0)
            fail("mprotect: %s", strerror(errno));
    }
}

static void forking(void)
{
    char *memory = map_private();
    for (uint64_t i = 0; i < repeats; i++) {
        for (uint64_t at = 0; at < size; at += PAGE)
            *(volatile char *)(memory + at) = 1;
        double began = now();
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        report(began, size / PAGE);
        if (child < 0 || waitpid(child, NULL, 0) != child)
            fail("fork: %s", strerror(errno));
    }
}

static void zero(void)
{
    char *memory = map_private();
    memset(memory, 1, size);
    for (uint64_t i = 0; i < repeats; i++) {
        double began = now();
        for (uint64_t n = 0; n < operations; n++) {
            char *page = memory + n * PAGE % ZEROED;
            memset(page, 0, PAGE);
            __asm__ volatile("" : : "r"(page) : "memory");
        }
        report(began, operations);
    }
}

static void copy(void)
{
    char *memory = map_private();
    memset(memory, 1, size);
    for (uint64_t i = 0; i < repeats; i++) {
        double began = now();
        for (uint64_t n = 0; n < operations; n++) {
            char *page = memory + n * PAGE % (ZEROED / 2);
            memcpy(page, page + ZEROED / 2, PAGE);
            __asm__ volatile("" : : "r"(page) : "memory");
        }
        report(began, operations);
    }
}

static void system_call(void)
{
    for (uint64_t i = 0; i < repeats; i++) {
        double began = now();
        for (uint64_t n = 0; n < operations; n++)
            syscall(SYS_getppid);
        report(began, operations);
    }
}

/*
 * A byte goes back and forth between two processes on one processor: the
 * CPU time of both, for each switch, with the two calls that lead to it.
 */
static void context_switch(void)
{
    int there[2], back[2];
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (pipe(there) != 0 || pipe(back) != 0 || sched_setaffinity(0, sizeof one, &one) != 0)
        fail("pipe: %s", strerror(errno));
    char byte = 0;
    pid_t child = fork();
    if (child < 0)
        fail("fork: %s", strerror(errno));
    if (child == 0) {
        close(there[1]);
        while (read(there[0], &byte, 1) == 1)
            if (write(back[1], &byte, 1) != 1)
                break;
        _exit(0);
    }
    for (uint64_t i = 0; i < repeats; i++) {
        double began = now();
        for (uint64_t n = 0; n < operations; n++)
            if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
                fail("the other process ended: %s", strerror(errno));
        /* One's own half of a round: a switch away, and the calls around it. */
        report(began, operations);
    }
    close(there[1]);
    waitpid(child, NULL, 0);
}

static const struct {
    const char *name, *what;
    void (*run)(void);
} measures[] = {
    {"chase", "dependent loads", chase},
    {"loads", "independent loads of random lines", loads},
    {"stream", "lines in order", stream},
    {"cycle", "dependent additions", cycle},
    {"branches", "branches on random bytes", branches},
    {"frames", "2 MiB blocks of physical memory that hold the pages", frames},
    {"fault", "first touches of pages", fault},
    {"populate", "mmap with MAP_POPULATE, a page", populate},
    {"unmap", "munmap, a page", unmapping},
    {"protect", "mprotect, a page", protect},
    {"fork", "fork, a page", forking},
    {"zero", "zeroing 4 KiB", zero},
    {"copy", "copying 4 KiB", copy},
    {"syscall", "a system call that does nothing", system_call},
    {"switch", "a context switch, with a read and a write of a pipe", context_switch},
};

int main(int argc, char **argv)
{
    const struct option_spec options[] = {
        {"size", OPTION_SIZE, &size, PAGE, TIB, "memory that is measured"},
        {"step", OPTION_SIZE, &step, LINE, GIB, "bytes from one place to the next"},
        {"operations", OPTION_COUNT, &operations, 1, UINT64_MAX, "in each repetition"},
        {"repeats", OPTION_COUNT, &repeats, 1, 1000000, "repetitions"},
        {"seed", OPTION_COUNT, &seed, 0, UINT64_MAX, "which order"},
        {"huge", OPTION_FLAG, &huge, 0, 0, "ask for 2 MiB pages"},
        {"taken", OPTION_COUNT, &taken, 0, 256, "branches: of 256, how many are taken"},
        {"file", OPTION_FLAG, &file, 0, 0, "unmap: pages of a file, which stay"},
        {"parallel", OPTION_FLAG, &parallel, 0, 0, "chase: eight at once"},
        {"together", OPTION_COUNT, &together, 1, PAGE / LINE, "chase: lines of a page in a row"},
    };
    size_t count = sizeof measures / sizeof measures[0], chosen = 0;
    while (argc > 1 && chosen < count && strcmp(argv[1], measures[chosen].name) != 0)
        chosen++;
    if (argc > 1 && chosen == count && strcmp(argv[1], "--help") != 0)
        usage_error("unknown measure '%s'; see --help", argv[1]);
    bool named = argc > 1 && chosen < count;
    PARSE_OPTIONS(argc - named, argv + named,
                  "Times of this computer. The first argument is the measure: chase, loads,\n"
                  "stream, cycle, branches, frames, fault, populate, unmap, protect, fork, zero,\n"
                  "copy, syscall, switch.",
                  options);
    if (!named)
        usage_error("name a measure; see --help");
    if (step % LINE != 0 || size % step != 0 || size % PAGE != 0 || (step > LINE && step < PAGE))
        usage_error("--step is 64, or pages; --size is whole pages and steps");
    if (PAGE / LINE % together != 0 || (together > 1 && step != LINE))
        usage_error("--together divides the 64 lines of a page, and needs the smallest --step");
    if ((measures[chosen].run == zero || measures[chosen].run == copy) && size < ZEROED)
        usage_error("--size: at least 1MiB is needed");
    measures[chosen].run();
    return finish();
}
