/*
 * impure.c - breaks both rules of symbols.py, to show that it sees them: it reads the clock as the
 * core must not, and exports a name as the plugin must not. Linked into nothing else.
 */
#include <time.h>

__attribute__((visibility("default"))) time_t impure_now(void);

time_t impure_now(void)
{
	return time(NULL);
}
