/* Vectors that grow by realloc, small and large, several at once. */
#include "bench.h"

int main(void) {
    enum { VECTORS = 64 };
    static char *vectors[VECTORS];
    static size_t sizes[VECTORS];
    uint64_t random = 21;
    for (int i = 0; i < 600000; i++) {
        int which = next_random(&random) % VECTORS;
        size_t most = which % 16 == 0 ? 4 << 20 : 60000;
        size_t size = sizes[which] + 16 + sizes[which] / (which % 2 ? 8 : 2);
        if (size > most) {
            free(vectors[which]);
            vectors[which] = NULL;
            size = 16;
        }
        vectors[which] = realloc(vectors[which], size);
        use(vectors[which], size);
        sizes[which] = size;
    }
}
