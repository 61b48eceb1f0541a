// Places where a test may make something go wrong. Nothing of this exists in an ordinary build.
#pragma once

#ifdef LAYERCAST_FAULTS

#include <cstdint>
#include <string>
#include <vector>

namespace layercast {

enum class Fault : int { kKill = 1, kStop = 2, kThrow = 3, kInterrupt = 4, kTell = 5 };

// The n-th time (from 1) that this process passes the point, the fault happens there, once. `when`: where the
// time is written (CLOCK_MONOTONIC, ns), in memory that outlives the process. kTell writes a byte to `fd` and
// goes on after a while.
void arm_fault(std::string point, std::uint64_t nth, Fault fault, int fd, std::uint64_t* when);
// Every point that exists.
std::vector<std::string> fault_points();
void fault_point(const char* name);

}  // namespace layercast

#define LAYERCAST_FAULT_POINT(name) ::layercast::fault_point(name)
#else
#define LAYERCAST_FAULT_POINT(name) static_cast<void>(0)
#endif

// Between two looks of a race: a test build may leave the processor here, so that the others go on meanwhile.
#ifdef LAYERCAST_PAUSES

#include <cstdint>

namespace layercast {

// One pass in `one_in` of every thread pauses, at random; 0: none does.
void arm_pauses(std::uint32_t one_in);
void pause_point();

}  // namespace layercast

#define LAYERCAST_PAUSE_POINT() ::layercast::pause_point()
#else
#define LAYERCAST_PAUSE_POINT() static_cast<void>(0)
#endif
