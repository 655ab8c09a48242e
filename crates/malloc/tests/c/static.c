/* Does a program that is linked statically work, with threads, a fork, and limits? */
#include "common.h"

static void *work(void *argument) {
    uint64_t random = 3 + (uintptr_t)argument;
    void *kept[100] = {0};
    for (int i = 0; i < 20000; i++) {
        int at = next_random(&random) % 100;
        free(kept[at]);
        size_t size = next_random(&random) % (i % 100 ? 3000 : 600000);
        CHECK(kept[at] = malloc(size));
        stamp(kept[at], size, i);
    }
    for (int i = 0; i < 100; i++) free(kept[i]);
    return NULL;
}

int contigua_malloc_owns(const void *memory) __attribute__((weak));

int main(void) {
    void *mine = malloc(100);
    /* Ours, not the C library's that lies in the same file. */
    CHECK(contigua_malloc_owns && contigua_malloc_owns(mine));
    free(mine);
    char *text;
    CHECK(asprintf(&text, "%0500d", 7) == 500);
    CHECK(contigua_malloc_owns(text));
    free(text);
    pthread_t threads[8];
    for (uintptr_t i = 0; i < 8; i++) CHECK(!pthread_create(&threads[i], NULL, work, (void *)i));
    pid_t child = fork();
    if (!child) {
        work(NULL);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    CHECK(!opaque(malloc((size_t)1 << 46)) && errno == ENOMEM);
    return 0;
}
