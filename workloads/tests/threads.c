/*
 * threads: several threads that each do a known amount of private work and
 * add to one shared counter under a mutex. Shows thread creation, stacks,
 * thread-local storage, futexes (contended mutex, join), and that no update
 * is lost; two rounds, so that thread exit and reuse show too.
 */
#include "../common.h"

#include <pthread.h>

#define ROUNDS 2

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t shared_sum;
static uint64_t additions;
static _Thread_local uint64_t own_additions;

static void *work(void *argument)
{
    uint64_t steps = *(const uint64_t *)argument;
    for (uint64_t i = 1; i <= steps; i++) {
        pthread_mutex_lock(&mutex);
        shared_sum += i;
        additions++;
        pthread_mutex_unlock(&mutex);
        own_additions++;
    }
    require(own_additions == steps);
    return argument;
}

int main(int argc, char **argv)
{
    uint64_t threads = 4, steps = 1000;
    const struct option_spec options[] = {
        {"threads", OPTION_COUNT, &threads, 1, 1024, "threads in each of two rounds"},
        {"steps", OPTION_COUNT, &steps, 1, 1000000000, "additions by each thread"},
    };
    PARSE_OPTIONS(argc, argv, "Threads that add to a shared counter.", options);

    pthread_t *handles = allocate(threads, sizeof *handles);
    for (int round = 0; round < ROUNDS; round++) {
        for (uint64_t t = 0; t < threads; t++)
            if ((errno = pthread_create(&handles[t], NULL, work, &steps)) != 0)
                fail("cannot start thread %" PRIu64 ": %s", t, strerror(errno));
        for (uint64_t t = 0; t < threads; t++) {
            void *result;
            require(pthread_join(handles[t], &result) == 0);
            require(result == &steps);
        }
    }
    free(handles);
    require(own_additions == 0); /* the main thread's own copy */
    require(additions == ROUNDS * threads * steps);
    require(shared_sum == ROUNDS * threads * (steps * (steps + 1) / 2));
    printf("threads: %" PRIu64 " threads, %" PRIu64 " additions, sum %" PRIu64 "\n",
           ROUNDS * threads, additions, shared_sum);
    return finish();
}
