/* Below a limit of 32 MiB, is all memory to be had again that was freed, be it in caches? */
#include "common.h"

int main(void) {
    static void *kept[1 << 16];
    size_t total = 0;
    int count = 0;
    for (size_t size = 1024; size <= 160 << 10; size += size / 8)
        for (size_t bytes = 0; bytes < 512 << 10; bytes += size, total += size)
            CHECK(kept[count++] = malloc(size));
    CHECK(total < 28 << 20);
    while (count) free(kept[--count]);
    char *all = malloc(28 << 20);
    CHECK(all);
    memset(all, 1, 28 << 20);
    return 0;
}
