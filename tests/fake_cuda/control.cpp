// How tests steer the pretended driver, and what they ask it afterwards.
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "state.h"

namespace {

void set(Fake& state, const std::string& key, const std::string& value) {
  const auto number = [&] { return std::strtoull(value.c_str(), nullptr, 10); };
  if (key == "devices") {
    state.devices = static_cast<int>(number());
  } else if (key == "bandwidth") {
    state.bytes_per_second = std::strtod(value.c_str(), nullptr);
  } else if (key == "latency_ns") {
    state.latency_ns = number();
  } else if (key == "lost_at") {
    state.lost_at = number() == 0 ? 0 : state.copies + number();
  } else if (key == "hang_at") {
    state.hang_at = number() == 0 ? 0 : state.copies + number();
  } else if (key == "hold") {
    state.hold = number();
  } else if (key == "fail") {  // function:n-th call from now on:code
    const std::size_t first = value.find(':'), second = value.find(':', first + 1);
    const std::string name = value.substr(0, first);
    state.failing[name] = {state.calls[name] + std::strtoull(value.c_str() + first + 1, nullptr, 10),
                           std::atoi(value.c_str() + second + 1)};
  } else {
    std::fprintf(stderr, "fake_cuda: setting %s is not known\n", key.c_str());
    std::abort();
  }
}

std::string joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

}  // namespace

// "key=value;key=value"
void configure(Fake& state, const std::string& text) {
  std::istringstream settings(text);
  for (std::string one; std::getline(settings, one, ';');) {
    const std::size_t equals = one.find('=');
    if (equals != std::string::npos) set(state, one.substr(0, equals), one.substr(equals + 1));
  }
}

#define TEST_API extern "C" __attribute__((visibility("default")))

TEST_API void fake_cuda_set(const char* text) {
  Fake& state = fake();
  const Lock lock(state.mutex);
  configure(state, text);
  state.changed.notify_all();
}

// Settings as at the start, devices healthy, nothing counted. What is alive stays alive.
TEST_API void fake_cuda_reset() {
  Fake& state = fake();
  const Lock lock(state.mutex);
  state.bytes_per_second = 0;
  state.latency_ns = state.lost_at = state.hang_at = state.hold = 0;
  state.failing.clear();
  for (CUctx_st* context : state.contexts) context->sticky = 0;
  state.calls.clear();
  state.log.clear();
  state.violations.clear();
  state.copies = state.copied_bytes = state.pageable_copies = state.host_functions = 0;
  state.changed.notify_all();
}

TEST_API std::uint64_t fake_cuda_number(const char* what) {
  Fake& state = fake();
  const Lock lock(state.mutex);
  const std::string name = what;
  if (name == "allocations") return state.allocations.size();
  if (name == "registrations") return state.registrations.size();
  if (name == "streams") return state.streams.size();
  if (name == "events") return state.events.size();
  if (name == "copies") return state.copies;
  if (name == "copied_bytes") return state.copied_bytes;
  if (name == "pageable_copies") return state.pageable_copies;
  if (name == "host_functions") return state.host_functions;
  if (name == "registered_bytes") {
    std::uint64_t bytes = 0;
    for (const auto& [begin, span] : state.registrations) bytes += span.end - span.begin;
    return bytes;
  }
  if (name == "retained") {
    std::uint64_t retained = 0;
    for (const CUctx_st* context : state.contexts) retained += static_cast<std::uint64_t>(context->retained);
    return retained;
  }
  const auto found = state.calls.find(name);
  return found == state.calls.end() ? 0 : found->second;
}

// "log" or "violations", a line each; what does not fit into `room` is cut off.
TEST_API void fake_cuda_text(const char* what, char* out, std::size_t room) {
  Fake& state = fake();
  const Lock lock(state.mutex);
  const std::string text = joined(std::strcmp(what, "log") == 0 ? state.log : state.violations);
  std::strncpy(out, text.c_str(), room - 1);
  out[room - 1] = 0;
}
