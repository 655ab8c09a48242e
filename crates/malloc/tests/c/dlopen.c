/* Do libraries that are loaded and unloaded later allocate from us, also in other threads? */
#include "common.h"
#include <dlfcn.h>

static void *work(void *library) {
    char *(*function)(void) = (char *(*)(void))dlsym(library, "early_thread");
    CHECK(function);
    char *mine = function();
    CHECK(mine && function() == mine);
    free(mine);
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    for (int round = 0; round < 20; round++) {
        void *library = dlopen(arguments[1], RTLD_NOW);
        CHECK(library);
        void *(*function)(void) = (void *(*)(void))dlsym(library, "early_kept");
        CHECK(function && stamped(function(), 1000, 5) && malloc_usable_size(function()) >= 1000);
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, library);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        dlclose(library);
        CHECK(dlopen("/nonexistent.so", RTLD_NOW) == NULL && dlerror());
    }
    return 0;
}
