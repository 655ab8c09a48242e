/* Twenty buffers of 5 to 25 MB, written as a whole and replaced at random. */
#include "bench.h"

int main(void) {
    enum { BUFFERS = 20 };
    static char *buffers[BUFFERS];
    uint64_t random = 7;
    for (int i = 0; i < 500; i++) {
        int which = next_random(&random) % BUFFERS;
        size_t size = (5 << 20) + next_random(&random) % (20 << 20);
        free(buffers[which]);
        buffers[which] = malloc(size);
        memset(buffers[which], i, size);
    }
}
