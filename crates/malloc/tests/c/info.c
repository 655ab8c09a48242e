/* malloc_info as glibc has it, and settings and figures by name. */
#include "common.h"
#include "contigua_malloc.h"
#include <malloc.h>

static uint64_t get(const char *name) {
    uint64_t value = 77;
    CHECK(!contigua_malloc_get(name, &value));
    return value;
}

static void by_name(void) {
    CHECK(get("limit") == 0 && get("soft_limit") == 0 && get("harden") == 1);
    CHECK(get("decay_milliseconds") > 0);
    CHECK(get("heap_mapped") > 0);
    CHECK(!contigua_malloc_set("limit", get("heap_mapped") + (64 << 20)));
    errno = 0;
    CHECK(opaque(malloc(100 << 20)) == NULL && errno == ENOMEM);
    CHECK(!contigua_malloc_set("soft_limit", 1 << 30) && get("soft_limit") == 1 << 30);
    CHECK(get("limit") > 64 << 20);
    CHECK(!contigua_malloc_set("limit", 0) && get("limit") == 0);
    CHECK(!contigua_malloc_set("release_rate", 5 << 20) && get("release_rate") == 5 << 20);
    CHECK(get("decay_milliseconds") == 0);
    CHECK(!contigua_malloc_set("interval_milliseconds", 1500));
    CHECK(get("interval_milliseconds") == 1500 && get("release_rate") == 5 << 20);
    CHECK(!contigua_malloc_set("decay_milliseconds", 250) && get("decay_milliseconds") == 250);
    errno = 0;
    uint64_t value = 77;
    CHECK(contigua_malloc_get("no such name", &value) == -1 && errno == ENOENT && value == 77);
    CHECK(contigua_malloc_set("no such name", 1) == -1 && errno == ENOENT);
    CHECK(contigua_malloc_set("harden", 2) == -1 && errno == EPERM);
    CHECK(contigua_malloc_set("heap_mapped", 2) == -1 && errno == EPERM);
}

int main(void) {
    CHECK(malloc_info(1, stdout) == EINVAL);
    CHECK(opaque(malloc(1 << 20)));
    by_name();
    static void *kept[300];
    for (int i = 0; i < 300; i++) CHECK(kept[i] = opaque(malloc(1000)));
    for (int i = 0; i < 300; i++) free(kept[i]);
    CHECK(!malloc_info(0, stdout));
    return 0;
}
