/* Can a process fork while its threads allocate, and can the children allocate? */
#include "common.h"

static volatile int stop;

static void *work(void *argument) {
    uint64_t random = 99 + (uintptr_t)argument;
    void *kept[64] = {0};
    while (!stop) {
        int i = next_random(&random) % 64;
        free(kept[i]);
        kept[i] = malloc(next_random(&random) % (i ? 2000 : 600000));
    }
    for (int i = 0; i < 64; i++) free(kept[i]);
    return NULL;
}

/* Handlers of other libraries may allocate while the allocator is held for the fork. */
static void handler(void) {
    for (int i = 0; i < 200; i++) free(opaque(malloc(i * 50)));
    free(opaque(malloc(500000)));
}

static void *child_thread(void *argument) {
    for (int i = 0; i < 5000; i++) free(opaque(malloc(i)));
    return argument;
}

int main(int count, char **arguments) {
    pthread_t threads[4];
    int rounds = count > 1 ? atoi(arguments[1]) : 200;
    pthread_atfork(handler, handler, handler);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i);
    for (int round = 0; round < rounds; round++) {
        void *before = malloc(100 + round * 10);
        stamp(before, 100 + round * 10, round);
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            alarm(20);
            CHECK(stamped(before, 100 + round * 10, round));
            free(before);
            for (int i = 0; i < 3000; i++) {
                void *p = malloc(i * 7);
                stamp(p, i * 7, i);
                CHECK(stamped(p, i * 7, i));
                free(p);
            }
            if (round % 20 == 0) {
                pthread_t thread;
                CHECK(!pthread_create(&thread, NULL, child_thread, NULL));
                pthread_join(thread, NULL);
                pid_t grandchild = fork();
                if (!grandchild) {
                    free(malloc(10));
                    _exit(0);
                }
                int status;
                CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
            }
            malloc_trim(0);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
        free(before);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    return 0;
}
