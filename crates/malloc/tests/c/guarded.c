/* Guarded allocations: with CONTIGUA_MALLOC_GUARDED=1 each mistake that is named ends the process with a report; the
 * driver looks at it. The pointer is printed first. */
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#define APART __attribute__((noinline, noclone))
enum { BYTES = 64, PAGE = 4096 };

APART static char *allocate_here(size_t size) {
    char *p = opaque(malloc(size));
    CHECK(p);
    return opaque(p);
}
APART static void free_here(void *p) {
    free(opaque(p));
    __asm__ volatile("");
}
APART static void write_here(char *p) { *(volatile char *)p = 1; }
APART static void read_here(char *p) { (void)*(volatile char *)p; }
static void *free_it(void *p) {
    free_here(p);
    return NULL;
}

static char *say(char *p) {
    char line[32];
    int length = snprintf(line, sizeof line, "%p\n", (void *)p);
    CHECK(write(1, line, length) == length);
    return p;
}
/* An object at the end, or at the beginning, of its pages. Of 200 objects all but 2^-100 find one. */
static char *placed(size_t size, int at_end) {
    for (int i = 0; i < 200; i++) {
        char *p = allocate_here(size);
        if (((uintptr_t)p + (at_end ? (size + 15) / 16 * 16 : 0)) % PAGE == 0) return p;
    }
    CHECK(!"an object there");
    return NULL;
}

static void mistake(const char *what) {
    char *p;
    pthread_t thread;
    if (!strcmp(what, "overflow"))
        write_here(say(placed(BYTES, 1)) + BYTES);
    else if (!strcmp(what, "overflow-read"))
        read_here(say(placed(BYTES, 1)) + BYTES);
    else if (!strcmp(what, "underflow"))
        write_here(say(placed(BYTES, 0)) - 1);
    else if (!strcmp(what, "beside")) {
        write_here(say(p = placed(100, 1)) + 100);
        free_here(p);
    } else if (!strcmp(what, "before")) {
        write_here(say(p = placed(BYTES, 1)) - 1);
        free_here(p);
    } else if (!strcmp(what, "write-after-free")) {
        free_here(p = say(allocate_here(BYTES)));
        write_here(p + 10);
    } else if (!strcmp(what, "read-after-free")) {
        free_here(p = say(allocate_here(3 * PAGE)));
        read_here(p + 2 * PAGE);
    } else if (!strcmp(what, "read-after-thread")) {
        p = say(allocate_here(BYTES));
        CHECK(!pthread_create(&thread, NULL, free_it, p) && !pthread_join(thread, NULL));
        read_here(p);
    } else if (!strcmp(what, "double-free")) {
        free_here(p = say(allocate_here(BYTES)));
        free_here(p);
    } else if (!strcmp(what, "double-free-thread")) {
        p = say(allocate_here(BYTES));
        CHECK(!pthread_create(&thread, NULL, free_it, p) && !pthread_join(thread, NULL));
        free_here(p);
    } else if (!strcmp(what, "inside"))
        free_here(say(allocate_here(BYTES)) + 16);
    else if (!strcmp(what, "realloc-after-free")) {
        free_here(p = say(allocate_here(BYTES)));
        p = realloc(p, 1000);
    } else if (!strcmp(what, "realloc-inside"))
        p = realloc(say(allocate_here(BYTES)) + 8, 1000);
    else if (!strcmp(what, "size-after-free")) {
        free_here(p = say(allocate_here(BYTES)));
        CHECK(malloc_usable_size(p) != 1);
    } else if (!strcmp(what, "after-realloc")) {
        p = say(allocate_here(BYTES));
        CHECK(realloc(p, 2 * BYTES));
        write_here(p);
    } else if (!strcmp(what, "in-child")) {
        p = say(allocate_here(BYTES));
        pid_t child = fork();
        CHECK(child >= 0);
        free_here(p);
        if (!child) write_here(p);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        raise(WTERMSIG(status));
    } else if (!strcmp(what, "small-stack")) {
        /* A handler with little stack of its own. */
        stack_t stack = {.ss_sp = malloc(16384), .ss_size = 16384};
        CHECK(!sigaltstack(&stack, NULL));
        free_here(p = say(allocate_here(BYTES)));
        write_here(p);
    }
}

static sigjmp_buf back;
static struct sigaction former;
static char *own;
static volatile int own_faults;

static void recover(int signal, siginfo_t *info, void *context) {
    if (info->si_addr == own) {
        own_faults++;
        siglongjmp(back, 1);
    }
    CHECK(former.sa_flags & SA_SIGINFO);
    former.sa_sigaction(signal, info, context);
}
/* A page of the program's own that may not be accessed. */
static void fault_and_go_on(void) {
    for (int i = 0; i < 3; i++) {
        if (!sigsetjmp(back, 1)) write_here(own);
        free_here(allocate_here(BYTES));
    }
    CHECK(own_faults == 3);
}
static void handle(void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, &former));
    own = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
}

/* What is true of guarded objects as of all others. */
static void correct(void) {
    static char *all[400];
    for (size_t size = 0; size < 70000; size += size / 8 + 1) {
        size_t align = (size_t)16 << size % 10;
        char *p = malloc(size), *q = calloc(1, size), *r = aligned_alloc(align, size);
        CHECK(p && q && r && (uintptr_t)r % align == 0);
        CHECK((uintptr_t)p % (size > 8 ? 16 : 8) == 0 && malloc_usable_size(p) >= size);
        for (size_t i = 0; i < size; i++) CHECK(!q[i]);
        stamp(p, size, size);
        stamp(r, size, size + 1);
        if (size) CHECK(p = realloc(p, size * 2));
        CHECK(stamped(p, size, size));
        if (size > 2) CHECK(p = realloc(p, size / 2));
        CHECK(stamped(r, size, size + 1));
        free(p);
        free(q);
        free(r);
    }
    char *p = malloc(100);
    CHECK(malloc_usable_size(p) == 100);
    memset(p, 1, 100);
    free(p);
    /* The oldest freed slot is used again first: not this one, while there are 255 others. */
    free(p = malloc(60000));
    for (int i = 0; i < 200; i++) {
        char *other = malloc(60000);
        CHECK(other - p >= 60000 || p - other >= 60000);
        free(other);
    }
    /* More than there is room for. */
    for (int i = 0; i < 400; i++) CHECK(all[i] = malloc(33));
    int guarded = 0;
    for (int i = 0; i < 400; i++) guarded += malloc_usable_size(all[i]) == 33;
    CHECK(guarded > 200 && guarded <= 256);
    for (int i = 0; i < 400; i++) free(all[i]);
    int error = errno = 4711;
    free_here(allocate_here(BYTES));
    CHECK(errno == error);
}

/* One in 1,000: of a million 1,000, but for seven standard deviations. */
static void rate(void) {
    int guarded = 0;
    for (int i = 0; i < 1000000; i++) {
        char *p = opaque(malloc(33));
        guarded += malloc_usable_size(p) == 33;
        free(p);
    }
    CHECK(guarded > 780 && guarded < 1220);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    const char *what = arguments[1];
    struct rlimit none = {0, 0};
    CHECK(!setrlimit(RLIMIT_CORE, &none));
    if (!strcmp(what, "correct")) {
        correct();
    } else if (!strcmp(what, "rate")) {
        rate();
    } else if (!strcmp(what, "own-handler")) {
        handle(recover);
        fault_and_go_on();
    } else if (!strcmp(what, "own-handler-passes")) {
        handle(recover);
        fault_and_go_on();
        mistake("write-after-free");
    } else if (!strcmp(what, "other-fault")) {
        own = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        write_here(own);
    } else if (!strcmp(what, "sent")) {
        raise(SIGSEGV);
    } else {
        mistake(what);
    }
    return 0;
}
