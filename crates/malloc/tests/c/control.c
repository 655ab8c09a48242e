/* Does the control interface of contigua_malloc.h do what it says? */
#include "common.h"
#include "contigua_malloc.h"

static long resident(void) {
    long total, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &total, &pages) == 2);
    fclose(file);
    return pages * 4096;
}

int main(void) {
    static void *kept[1000];
    for (int i = 0; i < 1000; i++) memset(kept[i] = malloc(50000), 1, 50000);
    CHECK(contigua_malloc_owns(kept[0]) && !contigua_malloc_owns(&kept));
    CHECK(contigua_malloc_figure("small_in_use") >= 1000 * 50000);
    CHECK(contigua_malloc_figure("no such figure") == -1);
    for (int i = 0; i < 1000; i++) free(kept[i]);
    long before = resident();
    size_t released = contigua_malloc_release(SIZE_MAX);
    CHECK(released > 40 << 20 && before - resident() > 40 << 20);
    char text[20000];
    size_t length = contigua_malloc_stats(text, sizeof text);
    CHECK(length > 500 && length == strlen(text) && strstr(text, "small_in_use"));
    CHECK(contigua_malloc_stats(text, 10) == length || strlen(text) == 9);
    CHECK(contigua_malloc_stats(NULL, 0) > 500);
    contigua_malloc_set_limit(0, contigua_malloc_figure("heap_mapped") + (64 << 20));
    errno = 0;
    CHECK(opaque(malloc(100 << 20)) == NULL && errno == ENOMEM);
    void *p = opaque(malloc(10 << 20));
    CHECK(p);
    free(p);
    contigua_malloc_set_limit(0, 0);
    p = opaque(malloc(100 << 20));
    CHECK(p);
    free(p);
    contigua_malloc_set_policy(10 << 20, 0);
    contigua_malloc_periodic();
    contigua_malloc_flush();
    CHECK(contigua_malloc_figure("cpu_cached") + contigua_malloc_figure("transfer_cached") < 65536);
    return 0;
}
