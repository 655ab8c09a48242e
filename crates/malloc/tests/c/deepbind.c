/* May memory pass between a program and a library that is loaded with RTLD_DEEPBIND, and is the
 * caller of dlopen still known? */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>

int main(int count, char **arguments) {
    CHECK(count == 2);
    void *outer = dlopen(arguments[1], RTLD_NOW | RTLD_DEEPBIND);
    CHECK(outer);
    void *(*load)(void) = (void *(*)(void))dlsym(outer, "outer_load");
    CHECK(load);
    void *inner = load();
    if (!inner) fprintf(stderr, "%s\n", dlerror());
    CHECK(inner);
    void *(*make)(size_t) = (void *(*)(size_t))dlsym(inner, "inner_make");
    void *(*change)(void *, size_t) = (void *(*)(void *, size_t))dlsym(inner, "inner_change");
    void (*end)(void *) = (void (*)(void *))dlsym(inner, "inner_end");
    char *(*early)(void) = (char *(*)(void))dlsym(inner, "inner_early");
    CHECK(make && change && end && early);
    for (size_t size = 1; size < 1 << 20; size *= 3) {
        char *p = opaque(malloc(size));
        stamp(p, size, size);
        p = change(p, size + 100);
        CHECK(stamped(p, size, size));
        end(p);
        free(opaque(make(size)));
    }
    char *text = early();
    CHECK(!strcmp(text, "early"));
    free(text);
    CHECK(!dlclose(inner) && !dlclose(outer));
    CHECK(!dlopen("no such library", RTLD_NOW | RTLD_DEEPBIND) && dlerror());
    return 0;
}
