/* Nanoseconds of processor time for a malloc and a free of one object, hot: the best of 20 loops. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PAIRS = 2000000, LOOPS = 20 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int count, char **arguments) {
    size_t size = count > 1 ? strtoul(arguments[1], NULL, 10) : 16;
    double best = 1e18;
    for (int loop = 0; loop < LOOPS; loop++) {
        double start = now();
        for (int pair = 0; pair < PAIRS; pair++) {
            void *volatile object = malloc(size);
            free(object);
        }
        double took = (now() - start) / PAIRS;
        if (took < best) best = took;
    }
    printf("%.2f\n", best);
    return 0;
}
