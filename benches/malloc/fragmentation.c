/* Phases with growing objects, each of which leaves every tenth object behind. */
#include "bench.h"

int main(void) {
    enum { OBJECTS = 150000, PHASES = 14 };
    static void *objects[OBJECTS];
    static void *left[OBJECTS / 10 * PHASES + PHASES];
    int kept = 0;
    uint64_t random = 8;
    for (int phase = 0; phase < PHASES; phase++) {
        for (int i = 0; i < OBJECTS; i++) {
            size_t size = 20 + phase * 24 + next_random(&random) % 16;
            objects[i] = use(malloc(size), size);
        }
        for (int i = 0; i < OBJECTS; i++)
            if (i % 10)
                free(objects[i]);
            else
                left[kept++] = objects[i];
    }
    for (int i = 0; i < kept; i++) free(left[i]);
}
