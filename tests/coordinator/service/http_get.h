// A minimal HTTP client for the tests of metrics: one GET, by HTTP/1.0, of a server on this
// machine. A library whose compile-time options change its classes would be the greater risk. Used
// by daemon_test.cc and prometheus_test.cc.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <string>

namespace espalier {

// Every byte but letters and digits as %XX.
inline std::string PercentEncoded(const std::string& text) {
  std::string result;
  for (const unsigned char c : text) {
    char escaped[4];
    std::snprintf(escaped, sizeof(escaped), "%%%02X", c);
    result += std::isalnum(c) ? std::string(1, static_cast<char>(c)) : escaped;
  }
  return result;
}

// The body of http://127.0.0.1:PORT/TARGET; empty when there is no answer within ten seconds.
inline std::string HttpGet(uint16_t port, const std::string& target) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit = {.tv_sec = 10, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  const std::string request = "GET " + target + " HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      send(fd, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size())) {
    char buffer[16384];
    for (ssize_t n; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  const size_t head_end = answer.find("\r\n\r\n");
  return head_end == std::string::npos ? "" : answer.substr(head_end + 4);
}

}  // namespace espalier
