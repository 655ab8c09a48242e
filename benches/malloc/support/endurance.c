/* What only shows after a while, or with many threads and processes.
 *
 * endurance churn MINUTES   two threads keep 64 MB of objects whose sizes change every minute; writes what is
 *                           resident in MB after each
 * endurance threads COUNT   so many threads at once, three times, each of which frees what another allocated
 * endurance forks COUNT     forks so often while four threads allocate; children allocate, every eighth forks
 *
 * Ends with 0 if all objects held what was written into them. */
#include "../bench.h"
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 1 << 20, BUDGET = 64 << 20, BURST = 1000, EACH = 100, AT_ONCE = 16 };
static _Atomic(uint32_t *) slots[SLOTS];
static atomic_long live;
static atomic_int minute, over;

static uint32_t *make(size_t size) {
    uint32_t *object = use(malloc(size), size);
    object[0] = (uint32_t)size;
    object[1] = ~(uint32_t)size;
    return object;
}

static size_t drop(uint32_t *object) {
    if (!object) return 0;
    size_t size = object[0];
    if (object[1] != ~(uint32_t)size) abort();
    free(object);
    return size;
}

/* Sizes as programs have them, times what the minute says. */
static size_t any_size(uint64_t *state) {
    static const int factors[] = {4, 12, 2, 28, 8};
    return 8 + random_size(state) * factors[atomic_load(&minute) % 5] / 4;
}

static void *churn(void *number) {
    uint64_t state = 77 + (uintptr_t)number;
    struct timespec pause = {0, 4000000};
    while (!atomic_load(&over)) {
        for (int i = 0; i < BURST; i++) {
            size_t size = atomic_load(&live) < BUDGET ? any_size(&state) : 0;
            uint32_t *object = size ? make(size) : NULL;
            object = atomic_exchange(&slots[next_random(&state) % SLOTS], object);
            atomic_fetch_add(&live, (long)size - (long)drop(object));
        }
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void *clock_of(void *minutes) {
    for (uintptr_t i = 1; i <= (uintptr_t)minutes; i++) {
        sleep(60);
        resident();
        atomic_store(&minute, (int)i);
    }
    atomic_store(&over, 1);
    return NULL;
}

static pthread_barrier_t barrier;
static int threads;

static void *thread(void *number) {
    uint64_t state = 77 + (uintptr_t)number;
    size_t mine = (uintptr_t)number * EACH;
    for (int i = 0; i < EACH; i++) slots[mine + i] = make(any_size(&state));
    pthread_barrier_wait(&barrier);
    size_t others = ((uintptr_t)number + 1) % threads * EACH;
    for (int i = 0; i < EACH; i++) drop(slots[others + i]);
    return NULL;
}

static void at_once(int count) {
    pthread_t *all = malloc(count * sizeof *all);
    pthread_attr_t small;
    threads = count;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int round = 0; round < 3; round++) {
        pthread_barrier_init(&barrier, NULL, count);
        for (int i = 0; i < count; i++)
            if (pthread_create(&all[i], &small, thread, (void *)(uintptr_t)i)) abort();
        for (int i = 0; i < count; i++) pthread_join(all[i], NULL);
    }
    free(all);
}

static void child(uint64_t state) {
    for (int i = 0; i < BURST; i++) drop(make(any_size(&state)));
    if (state % 8) _exit(0);
    pid_t grandchild = fork();
    int status = 0;
    if (!grandchild) _exit(drop(make(any_size(&state))) == 0);
    _exit(grandchild < 0 || waitpid(grandchild, &status, 0) != grandchild || status);
}

static void forks(int count) {
    for (int i = 0; i < count; i++) {
        int status = 0;
        if (i >= AT_ONCE && (wait(&status) < 0 || status)) abort();
        pid_t process = fork();
        if (process < 0) abort();
        if (!process) child(77 + i);
    }
    for (int status = 0; wait(&status) > 0;)
        if (status) abort();
    atomic_store(&over, 1);
}

static void *forking(void *count) {
    forks((int)(uintptr_t)count);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    uintptr_t number = strtoul(arguments[2], NULL, 10);
    int storm = !strcmp(arguments[1], "forks");
    if (!strcmp(arguments[1], "threads")) {
        at_once((int)number);
        return 0;
    }
    pthread_t first, others[4];
    if (pthread_create(&first, NULL, storm ? forking : clock_of, (void *)number)) abort();
    for (int i = 0; i < (storm ? 4 : 2); i++)
        if (pthread_create(&others[i], NULL, churn, (void *)(uintptr_t)(i + 1))) abort();
    pthread_join(first, NULL);
    for (int i = 0; i < (storm ? 4 : 2); i++) pthread_join(others[i], NULL);
    return 0;
}
