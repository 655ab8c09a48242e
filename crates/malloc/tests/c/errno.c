/* Does free leave errno alone, and do statistics and the other GNU functions answer? */
#include "common.h"

int main(void) {
    errno = 4321;
    static void *kept[20000];
    for (int i = 0; i < 20000; i++) kept[i] = malloc(i % 3000);
    for (int i = 0; i < 20000; i++) free(kept[i]);
    for (int i = 0; i < 100; i++) free(opaque(malloc(1 << 20)));
    CHECK(errno == 4321);
    void *p = opaque(malloc(10 << 20));
    struct mallinfo2 info = mallinfo2();
    CHECK(info.hblks == 1 && info.hblkhd >= (size_t)10 << 20 && info.uordblks >= info.hblkhd);
    free(p);
    CHECK(mallinfo2().hblks == 0);
    CHECK(mallopt(M_TRIM_THRESHOLD, 1 << 20) == 1);
    malloc_trim(0);
    malloc_stats();
    return 0;
}
