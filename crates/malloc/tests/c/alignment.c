/* Is every kind of allocation aligned as it promises, and usable to its whole length? */
#include "common.h"

int main(void) {
    for (size_t size = 0; size < 70000; size += size < 2000 ? 1 : 977) {
        void *p = malloc(size);
        CHECK(p && (uintptr_t)p % (size > 8 ? 16 : 8) == 0);
        CHECK(malloc_usable_size(p) >= size);
        memset(p, 0xa5, malloc_usable_size(p));
        free(p);
    }
    for (size_t align = 1; align <= (size_t)64 << 20; align *= 2) {
        size_t sizes[] = {0, 1, 8, 24, 100, align - 1, align, align + 1, 3 * align, 300000};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if (sizes[i] > (size_t)100 << 20) continue;
            void *p = memalign(align, sizes[i]), *q = NULL;
            CHECK(p && (uintptr_t)p % align == 0 && malloc_usable_size(p) >= sizes[i]);
            stamp(p, sizes[i], align);
            if (align >= sizeof(void *)) {
                CHECK(posix_memalign(&q, align, sizes[i]) == 0);
                CHECK((uintptr_t)q % align == 0);
                stamp(q, sizes[i], align + 1);
            }
            CHECK(stamped(p, sizes[i], align));
            free(p);
            free(q);
            p = aligned_alloc(align, sizes[i]);
            CHECK(p && (uintptr_t)p % align == 0);
            free(p);
        }
    }
    void *p = NULL;
    CHECK(posix_memalign(&p, 24, 8) == EINVAL && posix_memalign(&p, 4, 8) == EINVAL);
    errno = 0;
    CHECK(memalign(opaque((void *)24) ? 24 : 0, 8) == NULL && errno == EINVAL);
    p = valloc(10);
    CHECK((uintptr_t)p % 4096 == 0);
    free(p);
    p = pvalloc(4097);
    CHECK((uintptr_t)p % 4096 == 0 && malloc_usable_size(p) >= 8192);
    free(p);
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
    return 0;
}
