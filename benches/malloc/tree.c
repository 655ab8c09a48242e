/* Binary trees are built and walked: the hot loop of functional programs. */
#include "bench.h"

struct node {
    struct node *left, *right;
    long value;
};
static struct node *build(int depth) {
    struct node *node = malloc(sizeof *node);
    node->value = depth;
    node->left = depth ? build(depth - 1) : NULL;
    node->right = depth ? build(depth - 1) : NULL;
    return node;
}
static long drop(struct node *node) {
    if (!node) return 0;
    long sum = node->value + drop(node->left) + drop(node->right);
    free(node);
    return sum;
}
int main(void) {
    struct node *lasting = build(18);
    long sum = 0;
    for (int i = 0; i < 2500; i++) sum += drop(build(10));
    for (int i = 0; i < 4; i++) sum += drop(build(18));
    sum += drop(lasting);
    return sum == 0;
}
