/* Do the slowest paths of the allocator fit in the smallest stacks that threads can have, on which
 * signal handlers run, too, and does it do without what it does not define (mallctl)? */
#include "common.h"
#include <limits.h>
#include <signal.h>

int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));

static void *work(void *argument) {
    uintptr_t number = (uintptr_t)argument;
    void *kept[20];
    for (int i = 0; i < 20; i++) {
        size_t size = (size_t)(i * i * 601 + number * 1000) % 700000;
        CHECK(kept[i] = malloc(size));
        stamp(kept[i], size < 100 ? size : 100, i);
    }
    for (int i = 0; i < 20; i++) kept[i] = realloc(kept[i], 300000 + i);
    for (int i = 0; i < 20; i++) free(kept[i]);
    void *aligned;
    CHECK(!posix_memalign(&aligned, 1 << 16, 100000));
    free(aligned);
    if (number % 50 == 0) malloc_trim(0);
    CHECK(!opaque(malloc((size_t)1 << 46)) && errno == ENOMEM);
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    CHECK(!mallctl);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    /* The argument is what a build without optimization needs beyond that. */
    size_t smallest = sysconf(_SC_THREAD_STACK_MIN) + atol(arguments[1]);
    CHECK(!pthread_attr_setstacksize(&attributes, smallest));
    enum { AT_ONCE = 100, WAVES = 20 };
    pthread_t threads[AT_ONCE];
    /* 2,000 threads that come and go. */
    for (uintptr_t wave = 0; wave < WAVES; wave++) {
        for (uintptr_t i = 0; i < AT_ONCE; i++)
            CHECK(!pthread_create(&threads[i], &attributes, work, (void *)(wave * AT_ONCE + i)));
        for (int i = 0; i < AT_ONCE; i++) pthread_join(threads[i], NULL);
    }
    return 0;
}
