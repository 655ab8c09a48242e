// So many threads that compute, and make no system calls.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static long rounds;

static void *compute(void *seed)
{
    volatile unsigned long cells[64] = {0};
    unsigned long state = (unsigned long)seed;
    for (long i = 0; i < rounds; i++) {
        state = state * 6364136223846793005UL + 1;
        cells[state >> 58] += state;
    }
    return 0;
}

int main(int count, char **arguments)
{
    int threads = count > 1 ? atoi(arguments[1]) : 64;
    rounds = count > 2 ? atol(arguments[2]) : 20000;
    pthread_t *all = calloc(threads, sizeof *all);
    for (long i = 0; i < threads; i++)
        if (pthread_create(&all[i], 0, compute, (void *)i))
            return 1;
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], 0);
    puts("done");
    return 0;
}
