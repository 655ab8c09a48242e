/* Two threads allocate, two others free, through bounded queues. */
#include "bench.h"

enum { PAIRS = 2, QUEUE = 1024, MESSAGES = 1500000 };
static struct queue {
    _Atomic unsigned long head;
    char padding1[64];
    _Atomic unsigned long tail;
    char padding2[64];
    void *slots[QUEUE];
} queues[PAIRS];

#include <sched.h>
static void *work(void *argument) {
    uintptr_t number = (uintptr_t)argument - 1;
    struct queue *queue = &queues[number / 2];
    uint64_t random = 5 + number;
    for (unsigned long i = 0; i < MESSAGES; i++) {
        if (number % 2) {
            while (atomic_load(&queue->head) == i) sched_yield();
            free(queue->slots[i % QUEUE]);
            atomic_store(&queue->tail, i + 1);
        } else {
            size_t size = 16 + next_random(&random) % 240;
            void *message = use(malloc(size), size);
            while (i - atomic_load(&queue->tail) >= QUEUE) sched_yield();
            queue->slots[i % QUEUE] = message;
            atomic_store(&queue->head, i + 1);
        }
    }
    return NULL;
}
int main(void) { run_threads(2 * PAIRS, work); }
