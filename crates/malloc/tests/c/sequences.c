/* Are the restartable sequences atomic? Threads, many more than CPUs, allocate and free a few small
 * sizes while signals hit them and somebody empties all caches all the time. A signal that hits a
 * sequence finds the thread at its abort handler, before which the signature of rseq(2) lies: those
 * are counted, so that nobody believes in sequences that were never interrupted.
 *
 * Arguments: rounds of each thread, and how many of the signals must have hit a sequence. */
#include "common.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

#if defined(__x86_64__)
#define SIGNATURE 0x53053053u
#define COUNTER(context) ((uintptr_t)(context)->uc_mcontext.gregs[REG_RIP])
#elif defined(__aarch64__)
#define SIGNATURE 0xd428bc00u
#define COUNTER(context) ((uintptr_t)(context)->uc_mcontext.pc)
#endif

enum { THREADS = 8, SLOTS = 512, SIZES = 6 };
static const size_t sizes[SIZES] = {16, 48, 64, 256, 1024, 4096};
static _Atomic(uint64_t *) shared[SLOTS];
static _Atomic int running = THREADS;
static _Atomic long hits, signals;
static long rounds;

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    uintptr_t counter = COUNTER((ucontext_t *)context);
    signals++;
    if (counter % 4096 >= 4) {
        uint32_t before;
        memcpy(&before, (void *)(counter - 4), 4);
        hits += before == SIGNATURE;
    }
}

static void check(uint64_t *memory) {
    uint64_t size = memory[0];
    CHECK(size >= 16 && size <= 4096 &&
          memory[size / 8 - 1] == (size > 16 ? ~size : (uintptr_t)memory));
}

static void *work(void *argument) {
    uint64_t random = 99 + 31 * (uintptr_t)argument;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    timer_t timer;
    CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec often = {{0, 150000}, {0, 150000}};
    CHECK(!timer_settime(timer, 0, &often, NULL));
    for (long round = 0; round < rounds; round++) {
        uint64_t *batch[40];
        for (int i = 0; i < 40; i++) {
            size_t size = sizes[next_random(&random) % SIZES];
            batch[i] = opaque(malloc(size));
            CHECK(batch[i]);
            batch[i][0] = size;
            batch[i][size / 8 - 1] = size > 16 ? ~(uint64_t)size : (uintptr_t)batch[i];
        }
        for (int i = 0; i < 40; i++) { /* others' objects come back */
            uint64_t *other = atomic_exchange(&shared[next_random(&random) % SLOTS], batch[i]);
            if (!other) continue;
            check(other);
            free(other);
        }
    }
    CHECK(!timer_delete(timer));
    running--;
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    rounds = atol(arguments[1]);
    void (*flush)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "contigua_malloc_flush");
    size_t (*stats)(char *, size_t) =
        (size_t (*)(char *, size_t))dlsym(RTLD_DEFAULT, "contigua_malloc_stats");
    CHECK(flush && stats);
    char text[8192];
    stats(text, sizeof text);
    char *caches = strstr(text, "caches of");
    CHECK(caches);
    *strchr(caches, '\n') = 0;
    int sequences = strstr(caches, "CPUs") != NULL;
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_RESTART | SA_SIGINFO};
    CHECK(!sigaction(SIGUSR1, &action, NULL));
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, work, (void *)i));
    while (running) {
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
        flush();
    }
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL));
    for (int i = 0; i < SLOTS; i++)
        if (shared[i]) {
            check(shared[i]);
            free(shared[i]);
        }
    printf("caches of %s, %ld signals, %ld in sequences\n", sequences ? "CPUs" : "threads", signals,
           hits);
    if (sequences) CHECK(hits >= atol(arguments[2]));
    return 0;
}
