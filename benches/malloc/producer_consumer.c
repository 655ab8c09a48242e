/* Two threads allocate messages, two others free them; full queues change hands under a lock. */
#include "bench.h"

enum { PAIRS = 2, QUEUE = 512, ROUNDS = 3000 };
static struct queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int full;
    void *slots[2][QUEUE];
} queues[PAIRS];

static void *work(void *argument) {
    uintptr_t number = (uintptr_t)argument - 1;
    struct queue *queue = &queues[number / 2];
    uint64_t random = 5 + number;
    for (int round = 0; round < ROUNDS; round++) {
        void **slots = queue->slots[round % 2];
        int consumes = number % 2;
        if (!consumes)
            for (int i = 0; i < QUEUE; i++) {
                size_t size = 16 + next_random(&random) % 240;
                slots[i] = use(malloc(size), size);
            }
        pthread_mutex_lock(&queue->lock);
        while (consumes ? queue->full == 0 : queue->full == 1)
            pthread_cond_wait(&queue->changed, &queue->lock);
        if (!consumes) queue->full = 1;
        pthread_cond_broadcast(&queue->changed);
        pthread_mutex_unlock(&queue->lock);
        if (consumes) {
            for (int i = 0; i < QUEUE; i++) free(slots[i]);
            pthread_mutex_lock(&queue->lock);
            queue->full = 0;
            pthread_cond_broadcast(&queue->changed);
            pthread_mutex_unlock(&queue->lock);
        }
    }
    return NULL;
}
int main(void) {
    for (int i = 0; i < PAIRS; i++) {
        pthread_mutex_init(&queues[i].lock, NULL);
        pthread_cond_init(&queues[i].changed, NULL);
    }
    run_threads(2 * PAIRS, work);
}
