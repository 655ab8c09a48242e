/* A server: threads replace random objects of a large set; every so often a thread ends and a new
 * one goes on with its objects. */
#include "bench.h"

enum { THREADS = 8, OBJECTS = 1000, REPLACEMENTS = 30000, GENERATIONS = 30 };
static void *objects[THREADS][OBJECTS];

static void *serve(void *argument) {
    uintptr_t number = (uintptr_t)argument - 1;
    uint64_t random = 77 + number;
    for (int i = 0; i < REPLACEMENTS; i++) {
        int which = next_random(&random) % OBJECTS;
        size_t size = 10 + next_random(&random) % 500;
        free(objects[number][which]);
        objects[number][which] = use(malloc(size), size);
    }
    return NULL;
}
int main(void) {
    for (int i = 0; i < GENERATIONS; i++) run_threads(THREADS, serve);
}
