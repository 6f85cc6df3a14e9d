// Which machine of the catalogue a free text means: "NVIDIA A100-SXM4-80GB", "H100 80GB HBM3",
// "GeForce RTX 4090", "GB200 (one GPU)".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "calibration/machines.h"

namespace foreshard {

// The longest key, alias or name of the catalogue all of whose words stand in the text; vendor,
// case, punctuation and order do not count, what stands in brackets only where nothing else
// matches. nullptr: none. Chips match before sizes: "A100 96GB" is an A100.
const Machine* match_gpu(std::string_view text, const std::vector<Machine>& machines);

bool is_amd(const Gpu& gpu);

// How far one GPU's measurements are from another's: generations apart, then the ratio of peak to
// bandwidth, the size and the power for it. 0: the same machine.
double distance(const Gpu& a, const Gpu& b);

// Lower case words of letters and digits; "80 GB" is one word, "80gb".
std::vector<std::string> words_of(std::string_view text);

// How rows were taken, for rows of one program on several machines are off in the same way: the
// source without the words that name a GPU or a version.
std::string protocol_of(std::string_view source, const std::vector<Machine>& machines);

}
