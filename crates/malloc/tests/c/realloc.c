/* Does realloc keep contents on every way it can take, and does calloc zero used memory? */
#include "common.h"

int main(void) {
    uint64_t random = 88172645463325252ull;
    for (int round = 0; round < 3000; round++) {
        size_t size = next_random(&random) % (round % 10 ? 3000 : 3000000);
        unsigned char *p = malloc(size);
        CHECK(p);
        for (int step = 0; step < 6; step++) {
            size_t other = 1 + next_random(&random) % (round % 10 ? 5000 : 5000000);
            size_t kept = size < other ? size : other;
            for (size_t i = 0; i < kept; i += 509) p[i] = (unsigned char)(i + step);
            if (kept) p[kept - 1] = 77;
            p = realloc(p, other);
            CHECK(p && malloc_usable_size(p) >= other);
            for (size_t i = 0; i < kept; i += 509)
                CHECK(i == kept - 1 || p[i] == (unsigned char)(i + step));
            CHECK(!kept || p[kept - 1] == 77);
            size = other;
        }
        free(p);
    }
    CHECK(realloc(malloc(10), 0) == NULL);
    char *p = realloc(NULL, 10);
    CHECK(p);
    strcpy(p, "kept");
    errno = 0;
    CHECK(realloc(opaque(p), (size_t)PTRDIFF_MAX + 10) == NULL && errno == ENOMEM);
    CHECK(!strcmp(p, "kept"));
    CHECK(reallocarray(p, (size_t)1 << 40, (size_t)1 << 40) == NULL);
    CHECK((p = reallocarray(p, 100, 100)) && !strcmp(p, "kept"));
    free(p);
    size_t count = (size_t)1 << 33;
    CHECK(calloc(opaque((void *)count) ? count : 0, count) == NULL && errno == ENOMEM);
    for (int round = 0; round < 2000; round++) {
        size_t size = next_random(&random) % (round % 20 ? 20000 : 2000000);
        unsigned char *dirty = malloc(size);
        memset(opaque(dirty), 0xff, size);
        free(dirty);
        unsigned char *clean = opaque(calloc(1, size));
        for (size_t i = 0; i < size; i++) CHECK(clean[i] == 0);
        memset(clean, 0xff, size);
        free(clean);
    }
    return 0;
}
