/* A set grows to 100 MB and shrinks to a tenth, several times, with objects of other sizes. */
#include "bench.h"

int main(void) {
    enum { MOST = 800000 };
    static void *objects[MOST];
    uint64_t random = 3;
    int count = 0;
    for (int round = 0; round < 6; round++) {
        while (count < MOST) {
            size_t size = 16 + (round % 3) * 40 + next_random(&random) % 120;
            objects[count++] = use(malloc(size), size);
        }
        while (count > MOST / 10) {
            int which = next_random(&random) % count;
            free(objects[which]);
            objects[which] = objects[--count];
        }
    }
}
