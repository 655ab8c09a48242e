/*
 * processor: says what the processor claims that C libraries ask before they
 * copy with rep movsb: fast long copies (ERMS) and fast short ones (FSRM).
 */
#include "../common.h"

#include <cpuid.h>

int main(int argc, char **argv)
{
    parse_options(argc, argv, "Say how the processor claims to copy.", NULL, 0);
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    require(__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx));
    printf("processor: erms %u, fsrm %u\n", ebx >> 9 & 1, edx >> 4 & 1);
    return finish();
}
