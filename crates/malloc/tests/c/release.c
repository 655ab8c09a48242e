/* While memory goes back to the system or comes from it, in whichever way that was asked for, do other threads
 * get and free large objects? Each system call about memory waits here until another thread did so. */
#include "common.h"
#include "contigua_malloc.h"
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

enum { COUNT = 24, HUGE = 2 << 20, LARGE = 300 << 10, COSTLY = 40 << 20 };
static sem_t begin, done;
static int calls, usable;
static __thread int watched;

static void meanwhile(const char *call, void *address, size_t bytes, int argument) {
    if (!watched) return;
    struct timespec until;
    CHECK(!clock_gettime(CLOCK_REALTIME, &until));
    until.tv_sec += 20;
    CHECK(!sem_post(&begin));
    if (sem_timedwait(&done, &until)) {
        fprintf(stderr, "malloc waits for %s(%p, %zu, %d)\n", call, address, bytes, argument);
        _exit(1);
    }
    calls++;
}

/* The library's calls come here, too. */
int madvise(void *address, size_t bytes, int advice) {
    meanwhile("madvise", address, bytes, advice);
    return (int)syscall(SYS_madvise, address, bytes, advice);
}
int mprotect(void *address, size_t bytes, int protection) {
    usable++;
    meanwhile("mprotect", address, bytes, protection);
    return (int)syscall(SYS_mprotect, address, bytes, protection);
}

static void *other(void *kept) {
    for (;;) {
        CHECK(!sem_wait(&begin));
        free(kept);
        CHECK(kept = malloc(LARGE));
        CHECK(!sem_post(&done));
    }
}

static size_t mapped(void) { return (size_t)contigua_malloc_figure("heap_mapped"); }

int main(int count, char **arguments) {
    CHECK(count == 2);
    const char *way = arguments[1];
    static char *whole[COUNT], *parts[COUNT];
    pthread_t thread;
    CHECK(!sem_init(&begin, 0, 0) && !sem_init(&done, 0, 0));
    CHECK(!pthread_create(&thread, NULL, other, malloc(LARGE)));
    for (int i = 0; i < COUNT; i++) {
        CHECK((whole[i] = malloc(HUGE)) && (parts[i] = malloc(LARGE)));
        memset(whole[i], 1, HUGE);
        memset(parts[i], 1, LARGE);
    }
    if (!strcmp(way, "periodic") || !strcmp(way, "growth")) contigua_malloc_set_limit(1 << 20, 0);
    for (int i = 0; i < COUNT; i += 2) {
        /* "growth": what is free lies in pieces, so that a large request makes the heap larger. */
        if (strcmp(way, "growth")) free(whole[i]);
        free(parts[i]);
    }
    char *costly = malloc(COSTLY);
    CHECK(costly);
    int before = usable;
    watched = 1;
    if (!strcmp(way, "grow-in-place")) CHECK(realloc(costly, COSTLY + 4 * HUGE));
    if (!strcmp(way, "region"))
        for (int i = 0; i < COUNT; i++) CHECK(malloc(HUGE / 8 * 5));
    if (!strcmp(way, "trim")) CHECK(malloc_trim(0) == 1);
    if (!strcmp(way, "release")) CHECK(contigua_malloc_release(1 << 20) >= 1 << 20);
    if (!strcmp(way, "soft")) contigua_malloc_set_limit(1 << 20, 0);
    if (!strcmp(way, "growth")) CHECK(malloc(10 * HUGE));
    if (!strcmp(way, "request")) {
        contigua_malloc_set_limit(0, mapped() + 2 * HUGE);
        CHECK(malloc(8 * HUGE));
    }
    if (!strcmp(way, "periodic"))
        while (!contigua_malloc_periodic()) usleep(10000);
    watched = 0;
    CHECK(calls > 0);
    int grows = !strcmp(way, "growth") || !strcmp(way, "grow-in-place") || !strcmp(way, "region");
    CHECK(!grows || usable > before);
    return 0;
}
