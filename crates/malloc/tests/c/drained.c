/* Below a limit of 32 MiB, or of a little more that counts what is not the heap's, too, can all
 * memory be allocated again that was freed, be it in caches? */
#include "common.h"

int main(int arguments, char **argument) {
    if (arguments == 2) {
        int data = !strcmp(argument[1], "data");
        struct rlimit limit = {52 << 20, 52 << 20};
        CHECK(!setrlimit(data ? RLIMIT_DATA : RLIMIT_AS, &limit));
        execl("/proc/self/exe", argument[0], NULL);
        return 1;
    }
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
