/* Do 2000 threads at once work, does what threads leave behind get reused, and may destructors of
 * thread-specific values allocate and free? */
#include "common.h"

static pthread_barrier_t barrier;
static pthread_key_t key;
static void *left[2000];

static void at_end(void *value) {
    free(value);
    free(opaque(malloc(333)));
    static __thread int again;
    if (again++ < 2) pthread_setspecific(key, malloc(40));
}

static void *all_at_once(void *argument) {
    uintptr_t number = (uintptr_t)argument;
    pthread_setspecific(key, malloc(50));
    void *mine = malloc(100 + number % 1000);
    stamp(mine, 100 + number % 1000, number);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 100; i++) free(opaque(malloc(i * 13)));
    CHECK(stamped(mine, 100 + number % 1000, number));
    left[number] = mine;
    return NULL;
}

static void *one_after_another(void *argument) {
    void *objects[200];
    for (int i = 0; i < 200; i++) objects[i] = malloc(1000);
    for (int i = 0; i < 200; i++) free(objects[i]);
    return argument;
}

static long resident_pages(void) {
    long total, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &total, &resident) == 2);
    fclose(file);
    return resident;
}

int main(void) {
    enum { COUNT = 2000 };
    static pthread_t threads[COUNT];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    pthread_barrier_init(&barrier, NULL, COUNT);
    pthread_key_create(&key, at_end);
    for (uintptr_t i = 0; i < COUNT; i++)
        CHECK(!pthread_create(&threads[i], &attributes, all_at_once, (void *)i));
    for (int i = 0; i < COUNT; i++) pthread_join(threads[i], NULL);
    for (uintptr_t i = 0; i < COUNT; i++) {
        CHECK(stamped(left[i], 100 + i % 1000, i));
        free(left[i]);
    }
    long before = 0;
    for (int i = 0; i < 3000; i++) {
        if (i == 500) before = resident_pages();
        CHECK(!pthread_create(&threads[0], &attributes, one_after_another, NULL));
        pthread_join(threads[0], NULL);
    }
    /* 2500 threads with 200 KB each would be 500 MB. */
    CHECK(resident_pages() - before < (16 << 20) / 4096);
    return 0;
}
