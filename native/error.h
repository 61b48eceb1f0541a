// One exception for everything the core refuses or meets; codes as they stand in the control block.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace layercast {

enum class Code : std::uint64_t {
  kNone = 0,
  kProtocol = 1,
  kTimeout = 2,
  kDeviceInit = 3,
  kDeviceCopy = 4,
  kWriter = 5,
  kClosedWhileActive = 6,
  kPeerDied = 101,
  kPeerClosed = 102,
  kArgument = 103,
  kState = 104,
  kSuperseded = 105,
  kForked = 106,
  kResource = 107,
  kInterrupted = 108,
  kCancelled = 109,
  kChecksum = 110,
  kModel = 111,
};

class Error : public std::exception {
 public:
  Error(Code error_code, std::string text) : code(error_code), message(std::move(text)) {}
  const char* what() const noexcept override { return message.c_str(); }

  Code code;
  std::string message;
  std::int64_t rank = -1;
  std::uint64_t pid = 0;
  std::uint64_t epoch = 0;
  std::int64_t layer = -1;
  std::int64_t expert = -1;
  bool from_group = false;  // read from the control block: every rank raises the same
};

// The caller's own signal handling asked to stop (the bindings set the reason).
class Interrupted : public Error {
 public:
  Interrupted() : Error(Code::kInterrupted, "interrupted by a signal") {}
};

[[noreturn]] inline void refuse(Code code, std::string text) { throw Error(code, std::move(text)); }

}  // namespace layercast
