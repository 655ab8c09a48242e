/* Who has the memory? Functions with known figures, for the heap profile. The first argument says
 * which; the second, if any, is where this program writes a profile itself. */
#include "common.h"
#include <contigua_malloc.h>
#include <dlfcn.h>

#define LIVE __attribute__((noinline, noclone))

static void *kept[1 << 20];
static size_t next;

LIVE void *small_keeper(void) { return opaque(malloc(1000)); }
LIVE void *large_keeper(void) { return opaque(malloc(1 << 20)); }
LIVE void *churner(void) { return opaque(malloc(4096)); }
LIVE void *aligned_keeper(void) { return opaque(aligned_alloc(256, 2048)); }
LIVE void *clean_keeper(void) { return opaque(calloc(3, 700)); }
LIVE void *grower(void *memory, size_t size) { return opaque(realloc(memory, size)); }

static void write_profile(const char *path) {
    int (*writer)(const char *) =
        (int (*)(const char *))dlsym(RTLD_DEFAULT, "contigua_malloc_profile");
    CHECK(writer && writer(path) == 0);
}

static void *many(void *count) {
    for (size_t i = 0; i < *(size_t *)count; i++) {
        void *memory = small_keeper();
        stamp(memory, 1000, i);
        kept[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)] = memory;
        free(churner());
    }
    return NULL;
}

/* Every allocation is a sample (rate 1): exact figures. */
static void exact(const char *path) {
    static void *all[400];
    size_t n = 0;
    for (int i = 0; i < 100; i++) all[n++] = small_keeper();
    for (int i = 0; i < 10; i++) all[n++] = large_keeper();
    for (int i = 0; i < 50; i++) free(churner());
    for (int i = 0; i < 20; i++) all[n++] = aligned_keeper();
    for (int i = 0; i < 30; i++) all[n++] = clean_keeper();
    for (size_t i = 110; i < 130; i++) CHECK((uintptr_t)all[i] % 256 == 0);
    for (size_t i = 130; i < n; i++)
        for (int j = 0; j < 2100; j++) CHECK(((char *)all[i])[j] == 0);
    for (size_t i = 0; i < 40; i++) free(all[i]);
    char *memory = NULL;
    for (size_t size = 1 << 20; size <= 8 << 20; size += 1 << 20) {
        memory = grower(memory, size);
        stamp(memory, size, 9);
    }
    CHECK(memory && malloc_usable_size(memory) >= 8 << 20);
    errno = 4711;
    write_profile(path);
    CHECK(errno == 4711);
    int (*writer)(const char *) =
        (int (*)(const char *))dlsym(RTLD_DEFAULT, "contigua_malloc_profile");
    CHECK(writer("/nonexistent/profile") == -1 && errno == ENOENT);
}

/* Samples at the given rate: four threads keep 200 MB, and turn 800 MB over. */
static void sampled(const char *path) {
    size_t count = 50000;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, many, &count));
    for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], NULL));
    write_profile(path);
    for (size_t i = 0; i < next; i++) free(kept[i]);
}

/* Profiles while others allocate and fork. */
static void *writer_thread(void *path) {
    for (int i = 0; i < 30; i++) {
        int (*writer)(const char *) =
            (int (*)(const char *))dlsym(RTLD_DEFAULT, "contigua_malloc_profile");
        CHECK(writer(path) == 0 || errno == EBUSY);
    }
    return NULL;
}

static void busy(const char *path) {
    size_t count = 20000;
    char own[256];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&threads[i], NULL, i < 2 ? many : writer_thread,
                              i < 2 ? (void *)&count : (void *)path));
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            for (int j = 0; j < 2000; j++) free(churner());
            snprintf(own, sizeof own, "%s.child", path);
            write_profile(own);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], NULL));
    for (size_t i = 0; i < next; i++) free(kept[i]);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    if (!strcmp(arguments[1], "exact")) exact(arguments[2]);
    if (!strcmp(arguments[1], "sampled")) sampled(arguments[2]);
    if (!strcmp(arguments[1], "busy")) busy(arguments[2]);
    if (!strcmp(arguments[1], "fork")) { /* a child that exits: its own file, not its parent's */
        kept[0] = large_keeper();
        if (!fork()) exit(0);
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    }
    if (!strcmp(arguments[1], "off")) {
        int (*writer)(const char *) =
            (int (*)(const char *))dlsym(RTLD_DEFAULT, "contigua_malloc_profile");
        CHECK(writer(arguments[2]) == -1 && errno == EINVAL && access(arguments[2], F_OK));
    }
    return 0;
}
