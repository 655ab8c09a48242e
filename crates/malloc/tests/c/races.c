/* When several threads need the first span of a class at the same time and have given everything
 * back, does the heap have all of its pages again? */
#include "common.h"
#include "contigua_malloc.h"

enum { THREADS = 6, ROUNDS = 400 };
static pthread_barrier_t barrier;
static long before;

static long used(void) {
    contigua_malloc_flush();
    return (long)contigua_malloc_figure("heap_used");
}

static void *work(void *argument) {
    for (int round = 0; round < ROUNDS; round++) {
        size_t size = 300 + round % 40 * 100;
        pthread_barrier_wait(&barrier);
        void *mine = opaque(malloc(size));
        CHECK(mine);
        pthread_barrier_wait(&barrier);
        free(mine);
        /* What threads cache goes back with them, or here. */
        contigua_malloc_flush();
        pthread_barrier_wait(&barrier);
        if (!argument) {
            long now = used();
            if (!before) before = now;
            if (now > before) fprintf(stderr, "round %d: %ld bytes, not %ld\n", round, now, before);
            CHECK(now <= before);
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, work, (void *)i));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return 0;
}
