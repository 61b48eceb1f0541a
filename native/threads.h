// What all threads of this library have in common.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <vector>

namespace layercast {

// Called by the new thread itself. Signals belong to the caller's threads; `cpus`, checked before, may be
// empty: the thread then runs wherever the process may.
inline void name_thread(const char* name, const std::vector<int>& cpus = {}) {
  pthread_setname_np(pthread_self(), name);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<unsigned>(cpu), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

}  // namespace layercast
