#ifdef PEG
struct T_SRC {
	char *fl; int ln;
} T_SRC[NTRANS];

void
tr_2_src(int m, char *file, int ln)
{	T_SRC[m].fl = file;
	T_SRC[m].ln = ln;
}

void
putpeg(int n, int m)
{	printf("%5d	trans %4d ", m, n);
	printf("%s:%d\n",
		T_SRC[n].fl, T_SRC[n].ln);
}
#endif

void
settable(void)
{	Trans *T;
	Trans *settr(int, int, int, int, int, char *, int, int, int);

	trans = (Trans ***) emalloc(5*sizeof(Trans **));

	/* proctype 3: :init: */

	trans[3] = (Trans **) emalloc(13*sizeof(Trans *));

	T = trans[ 3][11] = settr(268,2,0,0,0,"ATOMIC", 0, 2, 0);
	T->nxt	= settr(268,2,1,0,0,"ATOMIC", 0, 2, 0);
	trans[3][1]	= settr(258,2,7,3,3,"r = 0", 0, 2, 0);
	trans[3][8]	= settr(265,2,7,1,0,".(goto)", 0, 2, 0);
	T = trans[3][7] = settr(264,2,0,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(264,2,2,0,0,"DO", 0, 2, 0);
	    T->nxt	= settr(264,2,5,0,0,"DO", 0, 2, 0);
	trans[3][2]	= settr(259,2,3,4,0,"((r<2))", 0, 2, 0);
	trans[3][3]	= settr(260,2,4,5,5,"(run Rank(0,r))", 0, 2, 0);
	trans[3][4]	= settr(261,2,7,6,6,"r = (r+1)", 0, 2, 0);
	trans[3][5]	= settr(262,2,9,2,0,"else", 0, 2, 0);
	trans[3][6]	= settr(263,2,9,1,0,"goto :b10", 0, 2, 0);
	trans[3][9]	= settr(266,2,10,1,0,"break", 0, 2, 0);
	trans[3][10]	= settr(267,0,12,7,7,"(run World())", 0, 2, 0);
	trans[3][12]	= settr(269,0,0,8,8,"-end-", 0, 3500, 0);

	/* proctype 2: World */

	trans[2] = (Trans **) emalloc(35*sizeof(Trans *));

	T = trans[2][15] = settr(238,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(238,0,1,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(238,0,14,0,0,"IF", 0, 2, 0);
	trans[2][1]	= settr(224,0,11,9,0,"(((0==1)||(0==3)))", 0, 2, 0);
	trans[2][12]	= settr(235,0,11,1,0,".(goto)", 0, 2, 0);
	T = trans[2][11] = settr(234,0,0,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(234,0,2,0,0,"DO", 0, 2, 0);
	    T->nxt	= settr(234,0,10,0,0,"DO", 0, 2, 0);
	trans[2][2]	= settr(225,0,8,10,0,"((verdict[0]==1))", 1, 2, 0);
	T = trans[ 2][8] = settr(231,2,0,0,0,"ATOMIC", 1, 2, 0);
	T->nxt	= settr(231,2,6,0,0,"ATOMIC", 1, 2, 0);
	T = trans[2][6] = settr(229,2,0,0,0,"IF", 1, 2, 0);
	T = T->nxt	= settr(229,2,3,0,0,"IF", 1, 2, 0);
	    T->nxt	= settr(229,2,5,0,0,"IF", 1, 2, 0);
	trans[2][3]	= settr(226,0,32,11,11,"((verdict[0]==1))", 1, 2, 0); /* m: 4 -> 32,0 */
	reached2[4] = 1;
	trans[2][4]	= settr(0,0,0,0,0,"verdict[0] = 3",0,0,0);
	trans[2][7]	= settr(230,0,32,12,12,".(goto)", 1, 2, 0);
	trans[2][5]	= settr(228,2,7,2,0,"else", 1, 2, 0);
	trans[2][9]	= settr(232,0,32,1,0,"goto :b8", 0, 2, 0);
	trans[2][10]	= settr(233,0,32,1,0,"goto :b8", 0, 2, 0);
	trans[2][13]	= settr(236,0,32,1,0,"break", 0, 2, 0);
	trans[2][16]	= settr(239,0,32,1,0,".(goto)", 0, 2, 0);
	trans[2][14]	= settr(237,0,32,2,0,"else", 0, 2, 0);
	T = trans[2][32] = settr(255,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(255,0,17,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(255,0,31,0,0,"IF", 0, 2, 0);
	trans[2][17]	= settr(240,0,22,13,13,"((0>=2))", 0, 2, 0); /* m: 18 -> 22,0 */
	reached2[18] = 1;
	trans[2][18]	= settr(0,0,0,0,0,"who = 0",0,0,0);
	trans[2][23]	= settr(246,0,22,1,0,".(goto)", 0, 2, 0);
	T = trans[2][22] = settr(245,0,0,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(245,0,21,0,0,"DO", 0, 2, 0);
	    T->nxt	= settr(245,0,19,0,0,"DO", 0, 2, 0);
	trans[2][21]	= settr(244,0,29,1,0,"goto :b9", 0, 2, 0);
	trans[2][19]	= settr(242,0,22,14,14,"((who<(2-1)))", 0, 2, 0); /* m: 20 -> 22,0 */
	reached2[20] = 1;
	trans[2][20]	= settr(0,0,0,0,0,"who = (who+1)",0,0,0);
	trans[2][24]	= settr(247,0,29,1,0,"break", 0, 2, 0);
	T = trans[2][29] = settr(252,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(252,0,25,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(252,0,28,0,0,"IF", 0, 2, 0);
	trans[2][25]	= settr(248,0,26,15,15,"alive[((0*2)+who)] = 0", 1, 2, 0);
	trans[2][26]	= settr(249,0,27,16,16,"poisoned[0] = 1", 1, 2, 0);
	trans[2][27]	= settr(250,0,34,17,17,"(run Rank(1,who))", 0, 2, 0);
	trans[2][30]	= settr(253,0,34,1,0,".(goto)", 0, 2, 0);
	trans[2][28]	= settr(251,0,34,1,0,"(1)", 0, 2, 0);
	trans[2][33]	= settr(256,0,34,1,0,".(goto)", 0, 2, 0);
	trans[2][31]	= settr(254,0,34,2,0,"else", 0, 2, 0);
	trans[2][34]	= settr(257,0,0,18,18,"-end-", 0, 3500, 0);

	/* proctype 1: Rank */

	trans[1] = (Trans **) emalloc(168*sizeof(Trans *));

	trans[1][1]	= settr(57,0,149,19,19,"seq = 0", 0, 2, 0);
	trans[1][150]	= settr(206,0,149,1,0,".(goto)", 0, 2, 0);
	T = trans[1][149] = settr(205,0,0,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(205,0,2,0,0,"DO", 0, 2, 0);
	    T->nxt	= settr(205,0,4,0,0,"DO", 0, 2, 0);
	trans[1][2]	= settr(58,0,166,20,20,"((e>2))", 0, 2, 0);
	trans[1][3]	= settr(59,0,166,1,0,"goto :b2", 0, 2, 0);
	trans[1][4]	= settr(60,0,8,2,0,"else", 0, 2, 0);
	T = trans[1][8] = settr(64,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(64,0,5,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(64,0,7,0,0,"IF", 0, 2, 0);
	trans[1][5]	= settr(61,0,165,21,21,"(!(alive[((g*2)+r)]))", 1, 2, 0);
	trans[1][6]	= settr(62,0,165,1,0,"goto dead", 0, 2, 0);
	trans[1][9]	= settr(65,0,40,1,0,".(goto)", 0, 2, 0);
	trans[1][7]	= settr(63,0,40,2,0,"else", 0, 2, 0);
	T = trans[1][40] = settr(96,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(96,0,10,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(96,0,29,0,0,"IF", 0, 2, 0);
	trans[1][10]	= settr(66,0,18,22,22,"((r==0))", 0, 2, 0); /* m: 11 -> 18,0 */
	reached1[11] = 1;
	trans[1][11]	= settr(0,0,0,0,0,"i = 0",0,0,0);
	trans[1][19]	= settr(75,0,18,1,0,".(goto)", 0, 2, 0);
	T = trans[1][18] = settr(74,0,0,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(74,0,12,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(74,0,14,0,0,"DO", 0, 2, 0);
	    T->nxt	= settr(74,0,16,0,0,"DO", 0, 2, 0);
	trans[1][12]	= settr(68,0,13,23,0,"(((i<2)&&((returned[((g*2)+i)]>=(e-1))||poisoned[g])))", 1, 2, 0);
	trans[1][13]	= settr(69,0,18,24,24,"i = (i+1)", 0, 2, 0);
	trans[1][14]	= settr(70,0,24,25,25,"((i==2))", 0, 2, 0);
	trans[1][15]	= settr(71,0,24,1,0,"goto :b3", 0, 2, 0);
	trans[1][16]	= settr(72,0,165,26,26,"(!(alive[((g*2)+r)]))", 1, 2, 0);
	trans[1][17]	= settr(73,0,165,1,0,"goto dead", 0, 2, 0);
	trans[1][20]	= settr(76,0,24,1,0,"break", 0, 2, 0);
	T = trans[1][24] = settr(80,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(80,0,21,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(80,0,23,0,0,"IF", 0, 2, 0);
	trans[1][21]	= settr(77,0,153,27,0,"(poisoned[g])", 1, 2, 0);
	trans[1][22]	= settr(78,0,153,1,0,"goto failed", 0, 2, 0);
	trans[1][25]	= settr(81,0,28,1,0,".(goto)", 0, 2, 0);
	trans[1][23]	= settr(79,0,28,2,0,"else", 0, 2, 0);
	T = trans[ 1][28] = settr(84,2,0,0,0,"ATOMIC", 1, 2, 0);
	T->nxt	= settr(84,2,26,0,0,"ATOMIC", 1, 2, 0);
	trans[1][26]	= settr(82,0,42,28,28,"verdict[g] = 1", 1, 2, 0); /* m: 27 -> 0,42 */
	reached1[27] = 1;
	trans[1][27]	= settr(0,0,0,0,0,"epoch_now[g] = e",0,0,0);
	trans[1][41]	= settr(97,0,42,1,0,".(goto)", 0, 2, 0);
	trans[1][29]	= settr(85,0,33,2,0,"else", 0, 2, 0);
	T = trans[1][33] = settr(89,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(89,0,30,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(89,0,31,0,0,"IF", 0, 2, 0);
	trans[1][30]	= settr(86,0,38,29,0,"(((epoch_now[g]>=e)||poisoned[g]))", 1, 2, 0);
	trans[1][34]	= settr(90,0,38,1,0,".(goto)", 0, 2, 0);
	trans[1][31]	= settr(87,0,165,30,30,"(!(alive[((g*2)+r)]))", 1, 2, 0);
	trans[1][32]	= settr(88,0,165,1,0,"goto dead", 0, 2, 0);
	T = trans[1][38] = settr(94,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(94,0,35,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(94,0,37,0,0,"IF", 0, 2, 0);
	trans[1][35]	= settr(91,0,153,31,0,"(poisoned[g])", 1, 2, 0);
	trans[1][36]	= settr(92,0,153,1,0,"goto failed", 0, 2, 0);
	trans[1][39]	= settr(95,0,42,1,0,".(goto)", 0, 2, 0);
	trans[1][37]	= settr(93,0,42,2,0,"else", 0, 2, 0);
	trans[1][42]	= settr(98,0,43,32,32,"running[((g*2)+r)] = 1", 1, 2, 0);
	trans[1][43]	= settr(99,0,44,33,33,"(run Consumer(g,r,e))", 0, 2, 0);
	trans[1][44]	= settr(100,0,126,34,34,"join_epoch[((g*2)+r)] = e", 1, 2, 0);
	T = trans[1][126] = settr(182,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(182,0,45,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(182,0,125,0,0,"IF", 0, 2, 0);
	trans[1][45]	= settr(101,0,84,35,35,"((r==0))", 0, 2, 0); /* m: 46 -> 84,0 */
	reached1[46] = 1;
	trans[1][46]	= settr(0,0,0,0,0,"piece = 0",0,0,0);
	trans[1][85]	= settr(141,0,84,1,0,".(goto)", 0, 2, 0);
	T = trans[1][84] = settr(140,0,0,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(140,0,47,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(140,0,49,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(140,0,51,0,0,"DO", 0, 2, 0);
	    T->nxt	= settr(140,0,53,0,0,"DO", 0, 2, 0);
	trans[1][47]	= settr(103,0,165,36,36,"(!(alive[((g*2)+0)]))", 1, 2, 0);
	trans[1][48]	= settr(104,0,165,1,0,"goto dead", 0, 2, 0);
	trans[1][49]	= settr(105,0,107,37,0,"((poisoned[g]||((epoch_now[g]==e)&&(verdict[g]==3))))", 1, 2, 0);
	trans[1][50]	= settr(106,0,107,1,0,"goto :b4", 0, 2, 0);
	trans[1][51]	= settr(107,0,107,38,38,"((piece==3))", 0, 2, 0);
	trans[1][52]	= settr(108,0,107,1,0,"goto :b4", 0, 2, 0);
	trans[1][53]	= settr(109,0,62,39,39,"((piece<3))", 0, 2, 0); /* m: 54 -> 62,0 */
	reached1[54] = 1;
	trans[1][54]	= settr(0,0,0,0,0,"s = (piece%2)",0,0,0);
	trans[1][55]	= settr(0,0,0,0,0,"i = 0",0,0,0);
	trans[1][63]	= settr(119,0,62,1,0,".(goto)", 0, 2, 0);
	T = trans[1][62] = settr(118,0,0,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(118,0,56,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(118,0,58,0,0,"DO", 0, 2, 0);
	    T->nxt	= settr(118,0,60,0,0,"DO", 0, 2, 0);
	trans[1][56]	= settr(112,0,57,40,0,"(((i<2)&&((((ack[((((g*2)+i)*2)+s)]>=ready_seq[((g*2)+s)])||poisoned[g])||((epoch_now[g]==e)&&(verdict[g]==3)))||0)))", 1, 2, 0);
	trans[1][57]	= settr(113,0,62,41,41,"i = (i+1)", 0, 2, 0);
	trans[1][58]	= settr(114,0,68,42,42,"((i==2))", 0, 2, 0);
	trans[1][59]	= settr(115,0,68,1,0,"goto :b5", 0, 2, 0);
	trans[1][60]	= settr(116,0,165,43,43,"(!(alive[((g*2)+0)]))", 1, 2, 0);
	trans[1][61]	= settr(117,0,165,1,0,"goto dead", 0, 2, 0);
	trans[1][64]	= settr(120,0,68,1,0,"break", 0, 2, 0);
	T = trans[1][68] = settr(124,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(124,0,65,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(124,0,67,0,0,"IF", 0, 2, 0);
	trans[1][65]	= settr(121,0,107,44,0,"((poisoned[g]||((epoch_now[g]==e)&&(verdict[g]==3))))", 1, 2, 0);
	trans[1][66]	= settr(122,0,107,1,0,"goto :b4", 0, 2, 0);
	trans[1][69]	= settr(125,0,72,1,0,".(goto)", 0, 2, 0);
	trans[1][67]	= settr(123,0,72,2,0,"else", 0, 2, 0);
	T = trans[ 1][72] = settr(128,2,0,0,0,"ATOMIC", 1, 2, 0);
	T->nxt	= settr(128,2,70,0,0,"ATOMIC", 1, 2, 0);
	trans[1][70]	= settr(126,4,76,45,45,"slot_epoch[((g*2)+s)] = e", 1, 2, 0); /* m: 71 -> 0,76 */
	reached1[71] = 1;
	trans[1][71]	= settr(0,0,0,0,0,"slot_piece[((g*2)+s)] = piece",0,0,0);
	T = trans[1][76] = settr(132,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(132,0,73,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(132,0,75,0,0,"IF", 0, 2, 0);
	trans[1][73]	= settr(129,0,165,46,46,"(!(alive[((g*2)+0)]))", 1, 2, 0);
	trans[1][74]	= settr(130,0,165,1,0,"goto dead", 0, 2, 0);
	trans[1][77]	= settr(133,0,78,1,0,".(goto)", 0, 2, 0);
	trans[1][75]	= settr(131,0,78,2,0,"else", 0, 2, 0);
	trans[1][78]	= settr(134,0,79,47,47,"ready_epoch[((g*2)+s)] = e", 1, 2, 0);
	trans[1][79]	= settr(135,0,82,48,48,"ready_number[((g*2)+s)] = piece", 1, 2, 0);
	T = trans[ 1][82] = settr(138,2,0,0,0,"ATOMIC", 1, 2, 0);
	T->nxt	= settr(138,2,80,0,0,"ATOMIC", 1, 2, 0);
	trans[1][80]	= settr(136,0,84,49,49,"seq = (seq+1)", 1, 2, 0); /* m: 81 -> 0,84 */
	reached1[81] = 1;
	trans[1][81]	= settr(0,0,0,0,0,"ready_seq[((g*2)+s)] = seq",0,0,0);
	trans[1][83]	= settr(0,0,0,0,0,"piece = (piece+1)",0,0,0);
	trans[1][86]	= settr(142,0,107,1,0,"break", 0, 2, 0);
	T = trans[1][107] = settr(163,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(163,0,87,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(163,0,106,0,0,"IF", 0, 2, 0);
	trans[1][87]	= settr(143,0,88,50,0,"(!((poisoned[g]||((epoch_now[g]==e)&&(verdict[g]==3)))))", 1, 2, 0);
	trans[1][88]	= settr(144,0,103,51,51,"s = 0", 0, 2, 0);
	trans[1][104]	= settr(160,0,103,1,0,".(goto)", 0, 2, 0);
	T = trans[1][103] = settr(159,0,0,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(159,0,89,0,0,"DO", 0, 2, 0);
	    T->nxt	= settr(159,0,101,0,0,"DO", 0, 2, 0);
	trans[1][89]	= settr(145,0,97,52,52,"((s<2))", 0, 2, 0); /* m: 90 -> 97,0 */
	reached1[90] = 1;
	trans[1][90]	= settr(0,0,0,0,0,"i = 0",0,0,0);
	trans[1][98]	= settr(154,0,97,1,0,".(goto)", 0, 2, 0);
	T = trans[1][97] = settr(153,0,0,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(153,0,91,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(153,0,93,0,0,"DO", 0, 2, 0);
	    T->nxt	= settr(153,0,95,0,0,"DO", 0, 2, 0);
	trans[1][91]	= settr(147,0,92,53,0,"(((i<2)&&(((ack[((((g*2)+i)*2)+s)]>=ready_seq[((g*2)+s)])||poisoned[g])||((epoch_now[g]==e)&&(verdict[g]==3)))))", 1, 2, 0);
	trans[1][92]	= settr(148,0,97,54,54,"i = (i+1)", 0, 2, 0);
	trans[1][93]	= settr(149,0,103,55,55,"((i==2))", 0, 2, 0); /* m: 100 -> 103,0 */
	reached1[100] = 1;
	trans[1][94]	= settr(150,0,100,1,0,"goto :b7", 0, 2, 0); /* m: 100 -> 0,103 */
	reached1[100] = 1;
	trans[1][95]	= settr(151,0,165,56,56,"(!(alive[((g*2)+0)]))", 1, 2, 0);
	trans[1][96]	= settr(152,0,165,1,0,"goto dead", 0, 2, 0);
	trans[1][99]	= settr(155,0,100,1,0,"break", 0, 2, 0);
	trans[1][100]	= settr(156,0,103,57,57,"s = (s+1)", 0, 2, 0);
	trans[1][101]	= settr(157,0,112,2,0,"else", 0, 2, 0);
	trans[1][102]	= settr(158,0,112,1,0,"goto :b6", 0, 2, 0);
	trans[1][105]	= settr(161,0,112,1,0,"break", 0, 2, 0);
	trans[1][108]	= settr(164,0,112,1,0,".(goto)", 0, 2, 0);
	trans[1][106]	= settr(162,0,112,2,0,"else", 0, 2, 0);
	T = trans[1][112] = settr(168,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(168,0,109,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(168,0,111,0,0,"IF", 0, 2, 0);
	trans[1][109]	= settr(165,0,153,58,0,"(poisoned[g])", 1, 2, 0);
	trans[1][110]	= settr(166,0,153,1,0,"goto failed", 0, 2, 0);
	trans[1][113]	= settr(169,0,119,1,0,".(goto)", 0, 2, 0);
	trans[1][111]	= settr(167,0,119,2,0,"else", 0, 2, 0);
	T = trans[ 1][119] = settr(175,2,0,0,0,"ATOMIC", 1, 2, 0);
	T->nxt	= settr(175,2,117,0,0,"ATOMIC", 1, 2, 0);
	T = trans[1][117] = settr(173,2,0,0,0,"IF", 1, 2, 0);
	T = T->nxt	= settr(173,2,114,0,0,"IF", 1, 2, 0);
	    T->nxt	= settr(173,2,116,0,0,"IF", 1, 2, 0);
	trans[1][114]	= settr(170,4,123,59,59,"((verdict[g]==1))", 1, 2, 0); /* m: 115 -> 123,0 */
	reached1[115] = 1;
	trans[1][115]	= settr(0,0,0,0,0,"verdict[g] = 2",0,0,0);
	trans[1][118]	= settr(174,0,123,60,60,".(goto)", 1, 2, 0);
	trans[1][116]	= settr(172,2,118,2,0,"else", 1, 2, 0);
	T = trans[1][123] = settr(179,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(179,0,120,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(179,0,122,0,0,"IF", 0, 2, 0);
	trans[1][120]	= settr(176,0,121,61,0,"(((verdict[g]==2)&&alive[((g*2)+0)]))", 1, 2, 0);
	trans[1][121]	= settr(177,0,141,62,62,"producer_done[g] = e", 1, 2, 0);
	trans[1][124]	= settr(180,0,141,1,0,".(goto)", 0, 2, 0);
	trans[1][122]	= settr(178,0,141,2,0,"else", 0, 2, 0);
	trans[1][127]	= settr(183,0,141,1,0,".(goto)", 0, 2, 0);
	trans[1][125]	= settr(181,0,141,2,0,"else", 0, 2, 0);
	T = trans[1][141] = settr(197,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(197,0,128,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(197,0,132,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(197,0,136,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(197,0,139,0,0,"IF", 0, 2, 0);
	trans[1][128]	= settr(184,0,131,63,0,"(((done_epoch[((g*2)+r)]>=e)&&(producer_done[g]>=e)))", 1, 2, 0);
	T = trans[ 1][131] = settr(187,0,0,0,0,"sub-sequence", 0, 2, 0);
	T->nxt	= settr(187,0,129,0,0,"sub-sequence", 0, 2, 0);
	trans[1][129]	= settr(185,0,130,64,0,"assert(((outcome[((g*(2+1))+e)]==0)||(outcome[((g*(2+1))+e)]==2)))", 1, 2, 0);
	trans[1][130]	= settr(186,0,143,65,65,"outcome[((g*(2+1))+e)] = 2", 1, 2, 0);
	trans[1][142]	= settr(198,0,143,1,0,".(goto)", 0, 2, 0);
	trans[1][132]	= settr(188,0,135,66,0,"((((epoch_now[g]==e)&&(verdict[g]==3))&&!(((done_epoch[((g*2)+r)]>=e)&&(producer_done[g]>=e)))))", 1, 2, 0);
	T = trans[ 1][135] = settr(191,0,0,0,0,"sub-sequence", 0, 2, 0);
	T->nxt	= settr(191,0,133,0,0,"sub-sequence", 0, 2, 0);
	trans[1][133]	= settr(189,0,134,67,0,"assert(((outcome[((g*(2+1))+e)]==0)||(outcome[((g*(2+1))+e)]==3)))", 1, 2, 0);
	trans[1][134]	= settr(190,0,143,68,68,"outcome[((g*(2+1))+e)] = 3", 1, 2, 0);
	trans[1][136]	= settr(192,0,137,69,0,"(((poisoned[g]&&!(((epoch_now[g]==e)&&(verdict[g]==3))))&&!(((done_epoch[((g*2)+r)]>=e)&&(producer_done[g]>=e)))))", 1, 2, 0);
	trans[1][137]	= settr(193,0,153,70,0,"assert((producer_done[g]<e))", 1, 2, 0);
	trans[1][138]	= settr(194,0,153,1,0,"goto failed", 0, 2, 0);
	trans[1][139]	= settr(195,0,165,71,71,"(!(alive[((g*2)+r)]))", 1, 2, 0);
	trans[1][140]	= settr(196,0,165,1,0,"goto dead", 0, 2, 0);
	trans[1][143]	= settr(199,0,145,72,72,"ended[r] = (ended[r]+1)", 1, 2, 0);
	T = trans[1][145] = settr(201,0,0,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(201,0,144,0,0,"IF", 0, 2, 0);
	trans[1][144]	= settr(200,0,147,73,0,"((!(running[((g*2)+r)])||!(alive[((g*2)+r)])))", 1, 2, 0);
	trans[1][146]	= settr(202,0,147,1,0,".(goto)", 0, 2, 0);
	trans[1][147]	= settr(203,0,148,74,74,"returned[((g*2)+r)] = e", 1, 2, 0);
	trans[1][148]	= settr(204,0,149,75,75,"e = (e+1)", 0, 2, 0);
	trans[1][151]	= settr(207,0,166,1,0,"break", 0, 2, 0);
	trans[1][152]	= settr(208,0,166,1,0,"goto out", 0, 2, 0);
	trans[1][153]	= settr(209,0,155,76,76,"ended[r] = (ended[r]+1)", 1, 2, 0);
	T = trans[1][155] = settr(211,0,0,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(211,0,154,0,0,"IF", 0, 2, 0);
	trans[1][154]	= settr(210,0,162,77,0,"((!(running[((g*2)+r)])||!(alive[((g*2)+r)])))", 1, 2, 0);
	trans[1][156]	= settr(212,0,162,1,0,".(goto)", 0, 2, 0);
	T = trans[1][162] = settr(218,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(218,0,157,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(218,0,161,0,0,"IF", 0, 2, 0);
	trans[1][157]	= settr(213,0,158,78,0,"((((g+1)<2)&&alive[((g*2)+r)]))", 1, 2, 0);
	trans[1][158]	= settr(214,0,1,79,79,"g = (g+1)", 0, 2, 0); /* m: 159 -> 0,1 */
	reached1[159] = 1;
	trans[1][159]	= settr(0,0,0,0,0,"e = 1",0,0,0);
	trans[1][160]	= settr(216,0,1,1,0,"goto again", 0, 2, 0);
	trans[1][163]	= settr(219,0,166,1,0,".(goto)", 0, 2, 0);
	trans[1][161]	= settr(217,0,166,2,0,"else", 0, 2, 0);
	trans[1][164]	= settr(220,0,166,1,0,"goto out", 0, 2, 0);
	trans[1][165]	= settr(221,0,166,1,0,"(1)", 0, 2, 0);
	trans[1][166]	= settr(222,0,167,1,0,"(1)", 0, 2, 0);
	trans[1][167]	= settr(223,0,0,80,80,"-end-", 0, 3500, 0);

	/* proctype 0: Consumer */

	trans[0] = (Trans **) emalloc(58*sizeof(Trans *));

	trans[0][1]	= settr(0,0,12,81,81,"s = 0", 0, 2, 0);
	trans[0][13]	= settr(12,0,12,1,0,".(goto)", 0, 2, 0);
	T = trans[0][12] = settr(11,0,0,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(11,0,2,0,0,"DO", 0, 2, 0);
	    T->nxt	= settr(11,0,10,0,0,"DO", 0, 2, 0);
	trans[0][2]	= settr(1,0,9,82,0,"((s<2))", 0, 2, 0);
	T = trans[ 0][9] = settr(8,2,0,0,0,"ATOMIC", 1, 2, 0);
	T->nxt	= settr(8,2,6,0,0,"ATOMIC", 1, 2, 0);
	T = trans[0][6] = settr(5,2,0,0,0,"IF", 1, 2, 0);
	T = T->nxt	= settr(5,2,3,0,0,"IF", 1, 2, 0);
	    T->nxt	= settr(5,2,5,0,0,"IF", 1, 2, 0);
	trans[0][3]	= settr(2,0,12,83,83,"(((ready_epoch[((g*2)+s)]!=0)&&(ready_epoch[((g*2)+s)]<e)))", 1, 2, 0); /* m: 4 -> 12,0 */
	reached0[4] = 1;
	trans[0][4]	= settr(0,0,0,0,0,"ack[((((g*2)+r)*2)+s)] = ready_seq[((g*2)+s)]",0,0,0);
	trans[0][7]	= settr(6,0,12,84,84,".(goto)", 1, 2, 0); /* m: 8 -> 0,12 */
	reached0[8] = 1;
	trans[0][5]	= settr(4,2,7,2,0,"else", 1, 2, 0);
	trans[0][8]	= settr(0,0,0,0,0,"s = (s+1)",0,0,0);
	trans[0][10]	= settr(9,0,15,2,0,"else", 0, 2, 0);
	trans[0][11]	= settr(10,0,15,1,0,"goto :b0", 0, 2, 0);
	trans[0][14]	= settr(13,0,15,1,0,"break", 0, 2, 0);
	trans[0][15]	= settr(14,0,53,85,85,"next_piece[((g*2)+r)] = 0", 1, 2, 0);
	trans[0][54]	= settr(53,0,53,1,0,".(goto)", 0, 2, 0);
	T = trans[0][53] = settr(52,0,0,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(52,0,16,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(52,0,18,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(52,0,20,0,0,"DO", 0, 2, 0);
	T = T->nxt	= settr(52,0,22,0,0,"DO", 0, 2, 0);
	    T->nxt	= settr(52,0,41,0,0,"DO", 0, 2, 0);
	trans[0][16]	= settr(15,0,56,86,0,"(!(alive[((g*2)+r)]))", 1, 2, 0);
	trans[0][17]	= settr(16,0,56,1,0,"goto gone", 0, 2, 0);
	trans[0][18]	= settr(17,0,56,87,87,"((poisoned[g]||((epoch_now[g]==e)&&(verdict[g]==3))))", 1, 2, 0);
	trans[0][19]	= settr(18,0,56,1,0,"goto :b1", 0, 2, 0);
	trans[0][20]	= settr(19,0,56,88,88,"(((piece==3)&&!(flying)))", 0, 2, 0);
	trans[0][21]	= settr(20,0,56,1,0,"goto :b1", 0, 2, 0);
	trans[0][22]	= settr(21,0,25,89,89,"(flying)", 0, 2, 0);
	T = trans[ 0][25] = settr(24,2,0,0,0,"ATOMIC", 1, 2, 0);
	T->nxt	= settr(24,2,23,0,0,"ATOMIC", 1, 2, 0);
	trans[0][23]	= settr(22,4,29,90,90,"assert(((slot_epoch[((g*2)+fly_slot)]==e)&&(slot_piece[((g*2)+fly_slot)]==fly_piece)))", 1, 2, 0); /* m: 24 -> 0,29 */
	reached0[24] = 1;
	trans[0][24]	= settr(0,0,0,0,0,"flying = 0",0,0,0);
	T = trans[0][29] = settr(28,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(28,0,26,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(28,0,28,0,0,"IF", 0, 2, 0);
	trans[0][26]	= settr(25,0,27,91,0,"(((alive[((g*2)+r)]&&(piece==3))&&(0!=5)))", 1, 2, 0);
	trans[0][27]	= settr(26,0,34,92,92,"done_epoch[((g*2)+r)] = e", 1, 2, 0);
	trans[0][30]	= settr(29,0,34,1,0,".(goto)", 0, 2, 0);
	trans[0][28]	= settr(27,0,34,2,0,"else", 0, 2, 0);
	T = trans[0][34] = settr(33,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(33,0,31,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(33,0,33,0,0,"IF", 0, 2, 0);
	trans[0][31]	= settr(30,0,32,93,0,"(alive[((g*2)+r)])", 1, 2, 0);
	trans[0][32]	= settr(31,0,39,94,94,"ack[((((g*2)+r)*2)+fly_slot)] = fly_seq", 1, 2, 0);
	trans[0][35]	= settr(34,0,39,1,0,".(goto)", 0, 2, 0);
	trans[0][33]	= settr(32,0,39,2,0,"else", 0, 2, 0);
	T = trans[0][39] = settr(38,0,0,0,0,"IF", 0, 2, 0);
	T = T->nxt	= settr(38,0,36,0,0,"IF", 0, 2, 0);
	    T->nxt	= settr(38,0,38,0,0,"IF", 0, 2, 0);
	trans[0][36]	= settr(35,0,37,95,0,"(((alive[((g*2)+r)]&&(piece==3))&&(0==5)))", 1, 2, 0);
	trans[0][37]	= settr(36,0,53,96,96,"done_epoch[((g*2)+r)] = e", 1, 2, 0);
	trans[0][40]	= settr(39,0,53,1,0,".(goto)", 0, 2, 0);
	trans[0][38]	= settr(37,0,53,2,0,"else", 0, 2, 0);
	trans[0][41]	= settr(40,0,52,97,97,"((((((piece<3)&&!(flying))&&(ready_epoch[((g*2)+(piece%2))]==e))&&(ready_number[((g*2)+(piece%2))]==piece))&&(ready_seq[((g*2)+(piece%2))]>ack[((((g*2)+r)*2)+(piece%2))])))", 1, 2, 0);
	T = trans[ 0][52] = settr(51,2,0,0,0,"ATOMIC", 1, 2, 0);
	T->nxt	= settr(51,2,42,0,0,"ATOMIC", 1, 2, 0);
	trans[0][42]	= settr(41,0,53,98,98,"s = (piece%2)", 1, 2, 0); /* m: 43 -> 0,53 */
	reached0[43] = 1;
	trans[0][43]	= settr(0,0,0,0,0,"assert((slot_epoch[((g*2)+s)]==e))",0,0,0);
	trans[0][44]	= settr(0,0,0,0,0,"assert((slot_piece[((g*2)+s)]==piece))",0,0,0);
	trans[0][45]	= settr(0,0,0,0,0,"assert((next_piece[((g*2)+r)]==piece))",0,0,0);
	trans[0][46]	= settr(0,0,0,0,0,"next_piece[((g*2)+r)] = (piece+1)",0,0,0);
	trans[0][47]	= settr(0,0,0,0,0,"fly_piece = piece",0,0,0);
	trans[0][48]	= settr(0,0,0,0,0,"fly_slot = s",0,0,0);
	trans[0][49]	= settr(0,0,0,0,0,"fly_seq = ready_seq[((g*2)+s)]",0,0,0);
	trans[0][50]	= settr(0,0,0,0,0,"flying = 1",0,0,0);
	trans[0][51]	= settr(0,0,0,0,0,"piece = (piece+1)",0,0,0);
	trans[0][55]	= settr(54,0,56,1,0,"break", 0, 2, 0);
	trans[0][56]	= settr(55,0,57,99,99,"running[((g*2)+r)] = 0", 1, 2, 0);
	trans[0][57]	= settr(56,0,0,100,100,"-end-", 0, 3500, 0);
	/* np_ demon: */
	trans[_NP_] = (Trans **) emalloc(3*sizeof(Trans *));
	T = trans[_NP_][0] = settr(9997,0,1,_T5,0,"(np_)", 1,2,0);
	    T->nxt	  = settr(9998,0,0,_T2,0,"(1)",   0,2,0);
	T = trans[_NP_][1] = settr(9999,0,1,_T5,0,"(np_)", 1,2,0);
}

Trans *
settr(	int t_id, int a, int b, int c, int d,
	char *t, int g, int tpe0, int tpe1)
{	Trans *tmp = (Trans *) emalloc(sizeof(Trans));

	tmp->atom  = a&(6|32);	/* only (2|8|32) have meaning */
	if (!g) tmp->atom |= 8;	/* no global references */
	tmp->st    = b;
	tmp->tpe[0] = tpe0;
	tmp->tpe[1] = tpe1;
	tmp->tp    = t;
	tmp->t_id  = t_id;
	tmp->forw  = c;
	tmp->back  = d;
	return tmp;
}

Trans *
cpytr(Trans *a)
{	Trans *tmp = (Trans *) emalloc(sizeof(Trans));

	int i;
	tmp->atom  = a->atom;
	tmp->st    = a->st;
#ifdef HAS_UNLESS
	tmp->e_trans = a->e_trans;
	for (i = 0; i < HAS_UNLESS; i++)
		tmp->escp[i] = a->escp[i];
#endif
	tmp->tpe[0] = a->tpe[0];
	tmp->tpe[1] = a->tpe[1];
	for (i = 0; i < 6; i++)
	{	tmp->qu[i] = a->qu[i];
		tmp->ty[i] = a->ty[i];
	}
	tmp->tp    = (char *) emalloc(strlen(a->tp)+1);
	strcpy(tmp->tp, a->tp);
	tmp->t_id  = a->t_id;
	tmp->forw  = a->forw;
	tmp->back  = a->back;
	return tmp;
}

#ifndef NOREDUCE
int
srinc_set(int n)
{	if (n <= 2) return LOCAL;
	if (n <= 2+  DELTA) return Q_FULL_F; /* 's' or nfull  */
	if (n <= 2+2*DELTA) return Q_EMPT_F; /* 'r' or nempty */
	if (n <= 2+3*DELTA) return Q_EMPT_T; /* empty */
	if (n <= 2+4*DELTA) return Q_FULL_T; /* full  */
	if (n ==   5*DELTA) return GLOBAL;
	if (n ==   6*DELTA) return TIMEOUT_F;
	if (n ==   7*DELTA) return ALPHA_F;
	Uerror("cannot happen srinc_class");
	return BAD;
}
int
srunc(int n, int m)
{	switch(m) {
	case Q_FULL_F: return n-2;
	case Q_EMPT_F: return n-2-DELTA;
	case Q_EMPT_T: return n-2-2*DELTA;
	case Q_FULL_T: return n-2-3*DELTA;
	case ALPHA_F:
	case TIMEOUT_F: return 257; /* non-zero, and > MAXQ */
	}
	Uerror("cannot happen srunc");
	return 0;
}
#endif
int cnt;
#ifdef HAS_UNLESS
int
isthere(Trans *a, int b)
{	Trans *t;
	for (t = a; t; t = t->nxt)
		if (t->t_id == b)
			return 1;
	return 0;
}
#endif
#ifndef NOREDUCE
int
mark_safety(Trans *t) /* for conditional safety */
{	int g = 0, i, j, k;

	if (!t) return 0;
	if (t->qu[0])
		return (t->qu[1])?2:1;	/* marked */

	for (i = 0; i < 2; i++)
	{	j = srinc_set(t->tpe[i]);
		if (j >= GLOBAL && j != ALPHA_F)
			return -1;
		if (j != LOCAL)
		{	k = srunc(t->tpe[i], j);
			if (g == 0
			||  t->qu[0] != k
			||  t->ty[0] != j)
			{	t->qu[g] = k;
				t->ty[g] = j;
				g++;
	}	}	}
	return g;
}
#endif
void
retrans(int n, int m, int is, short srcln[], uchar reach[], uchar lpstate[])
	/* process n, with m states, is=initial state */
{	Trans *T0, *T1, *T2, *T3;
	Trans *T4, *T5; /* t_reverse or has_unless */
	int i;
#if defined(HAS_UNLESS) || !defined(NOREDUCE)
	int k;
#endif
#ifndef NOREDUCE
	int g, h, j, aa;
#endif
#ifdef HAS_UNLESS
	int p;
#endif
	if (state_tables >= 4)
	{	printf("STEP 1 %s\n", 
			procname[n]);
		for (i = 1; i < m; i++)
		for (T0 = trans[n][i]; T0; T0 = T0->nxt)
			crack(n, i, T0, srcln);
		return;
	}
	do {
		for (i = 1, cnt = 0; i < m; i++)
		{	T2 = trans[n][i];
			T1 = T2?T2->nxt:(Trans *)0;
/* prescan: */		for (T0 = T1; T0; T0 = T0->nxt)
/* choice in choice */	{	if (T0->st && trans[n][T0->st]
				&&  trans[n][T0->st]->nxt)
					break;
			}
#if 0
		if (T0)
		printf("\tstate %d / %d: choice in choice\n",
		i, T0->st);
#endif
			if (T0)
			for (T0 = T1; T0; T0 = T0->nxt)
			{	T3 = trans[n][T0->st];
				if (!T3->nxt)
				{	T2->nxt = cpytr(T0);
					T2 = T2->nxt;
					imed(T2, T0->st, n, i);
					continue;
				}
				do {	T3 = T3->nxt;
					T2->nxt = cpytr(T3);
					T2 = T2->nxt;
					imed(T2, T0->st, n, i);
				} while (T3->nxt);
				cnt++;
			}
		}
	} while (cnt);
	if (state_tables >= 3)
	{	printf("STEP 2 %s\n", 
			procname[n]);
		for (i = 1; i < m; i++)
		for (T0 = trans[n][i]; T0; T0 = T0->nxt)
			crack(n, i, T0, srcln);
		return;
	}
	for (i = 1; i < m; i++)
	{	if (trans[n][i] && trans[n][i]->nxt) /* optimize */
		{	T1 = trans[n][i]->nxt;
#if 0
			printf("\t\tpull %d (%d) to %d\n",
			T1->st, T1->forw, i);
#endif
			srcln[i] = srcln[T1->st];	/* Oyvind Teig, 5.2.0 */

			if (!trans[n][T1->st]) continue;
			T0 = cpytr(trans[n][T1->st]);
			trans[n][i] = T0;
			reach[T1->st] = 1;
			imed(T0, T1->st, n, i);
			for (T1 = T1->nxt; T1; T1 = T1->nxt)
			{
#if 0
			printf("\t\tpull %d (%d) to %d\n",
				T1->st, T1->forw, i);
#endif
		/*		srcln[i] = srcln[T1->st];  gh: not useful */
				if (!trans[n][T1->st]) continue;
				T0->nxt = cpytr(trans[n][T1->st]);
				T0 = T0->nxt;
				reach[T1->st] = 1;
				imed(T0, T1->st, n, i);
	}	}	}
	if (state_tables >= 2)
	{	printf("STEP 3 %s\n", 
			procname[n]);
		for (i = 1; i < m; i++)
		for (T0 = trans[n][i]; T0; T0 = T0->nxt)
			crack(n, i, T0, srcln);
		return;
	}
#ifdef HAS_UNLESS
	for (i = 1; i < m; i++)
	{	if (!trans[n][i]) continue;
		/* check for each state i if an
		 * escape to some state p is defined
		 * if so, copy and mark p's transitions
		 * and prepend them to the transition-
		 * list of state i
		 */
	 if (!like_java) /* the default */
	 {	for (T0 = trans[n][i]; T0; T0 = T0->nxt)
		for (k = HAS_UNLESS-1; k >= 0; k--)
		{	if (p = T0->escp[k])
			for (T1 = trans[n][p]; T1; T1 = T1->nxt)
			{	if (isthere(trans[n][i], T1->t_id))
					continue;
				T2 = cpytr(T1);
				T2->e_trans = p;
				T2->nxt = trans[n][i];
				trans[n][i] = T2;
		}	}
	 } else /* outermost unless checked first */
	 {	T4 = T3 = (Trans *) 0;
		for (T0 = trans[n][i]; T0; T0 = T0->nxt)
		for (k = HAS_UNLESS-1; k >= 0; k--)
		{	if (p = T0->escp[k])
			for (T1 = trans[n][p]; T1; T1 = T1->nxt)
			{	if (isthere(trans[n][i], T1->t_id))
					continue;
				T2 = cpytr(T1);
				T2->nxt = (Trans *) 0;
				T2->e_trans = p;
				if (T3)	T3->nxt = T2;
				else	T4 = T2;
				T3 = T2;
		}	}
		if (T4)
		{	T3->nxt = trans[n][i];
			trans[n][i] = T4;
		}
	 }
	}
#endif
#ifndef NOREDUCE
	for (i = 1; i < m; i++)
	{	if (a_cycles)
		{ /* moves through these states are visible */
	#if PROG_LAB>0 && defined(HAS_NP)
			if (progstate[n][i])
				goto degrade;
			for (T1 = trans[n][i]; T1; T1 = T1->nxt)
				if (progstate[n][T1->st])
					goto degrade;
	#endif
			if (accpstate[n][i] || visstate[n][i])
				goto degrade;
			for (T1 = trans[n][i]; T1; T1 = T1->nxt)
				if (accpstate[n][T1->st])
					goto degrade;
		}
		T1 = trans[n][i];
		if (!T1) continue;
		g = mark_safety(T1);	/* V3.3.1 */
		if (g < 0) goto degrade; /* global */
		/* check if mixing of guards preserves reduction */
		if (T1->nxt)
		{	k = 0;
			for (T0 = T1; T0; T0 = T0->nxt)
			{	if (!(T0->atom&8))
					goto degrade;
				for (aa = 0; aa < 2; aa++)
				{	j = srinc_set(T0->tpe[aa]);
					if (j >= GLOBAL && j != ALPHA_F)
						goto degrade;
					if (T0->tpe[aa]
					&&  T0->tpe[aa]
					!=  T1->tpe[0])
						k = 1;
			}	}
			/* g = 0;	V3.3.1 */
			if (k)	/* non-uniform selection */
			for (T0 = T1; T0; T0 = T0->nxt)
			for (aa = 0; aa < 2; aa++)
			{	j = srinc_set(T0->tpe[aa]);
				if (j != LOCAL)
				{	k = srunc(T0->tpe[aa], j);
					for (h = 0; h < 6; h++)
						if (T1->qu[h] == k
						&&  T1->ty[h] == j)
							break;
					if (h >= 6)
					{	T1->qu[g%6] = k;
						T1->ty[g%6] = j;
						g++;
			}	}	}
			if (g > 6)
			{	T1->qu[0] = 0;	/* turn it off */
				printf("pan: warning, line %d, ",
					srcln[i]);
			 	printf("too many stmnt types (%d)",
					g);
			  	printf(" in selection\n");
			  goto degrade;
			}
		}
		/* mark all options global if >=1 is global */
		for (T1 = trans[n][i]; T1; T1 = T1->nxt)
			if (!(T1->atom&8)) break;
		if (T1)
degrade:	for (T1 = trans[n][i]; T1; T1 = T1->nxt)
			T1->atom &= ~8;	/* mark as unsafe */
		/* can only mix 'r's or 's's if on same chan */
		/* and not mixed with other local operations */
		T1 = trans[n][i];
		if (!T1 || T1->qu[0]) continue;
		j = T1->tpe[0];
		if (T1->nxt && T1->atom&8)
		{ if (j == 5*DELTA)
		  {	printf("warning: line %d ", srcln[i]);
			printf("mixed condition ");
			printf("(defeats reduction)\n");
			goto degrade;
		  }
		  for (T0 = T1; T0; T0 = T0->nxt)
		  for (aa = 0; aa < 2; aa++)
		  if  (T0->tpe[aa] && T0->tpe[aa] != j)
		  {	printf("warning: line %d ", srcln[i]);
			printf("[%d-%d] mixed %stion ",
				T0->tpe[aa], j, 
				(j==5*DELTA)?"condi":"selec");
			printf("(defeats reduction)\n");
			printf("	'%s' <-> '%s'\n",
				T1->tp, T0->tp);
			goto degrade;
		} }
	}
#endif
	for (i = 1; i < m; i++)
	{	T2 = trans[n][i];
		if (!T2
		||  T2->nxt
		||  strncmp(T2->tp, ".(goto)", 7)
		||  !stopstate[n][i])
			continue;
		stopstate[n][T2->st] = 1;
	}
	if (state_tables && !verbose)
	{	if (dodot)
		{	char buf[256], *q = buf, *p = procname[n];
			while (*p != '\0')
			{	if (*p != ':')
				{	*q++ = *p;
				}
				p++;
			}
			*q = '\0';
			printf("digraph ");
			switch (Btypes[n]) {
			case I_PROC:  printf("init {\n"); break;
			case N_CLAIM: printf("claim_%s {\n", buf); break;
			case E_TRACE: printf("notrace {\n"); break;
			case N_TRACE: printf("trace {\n"); break;
			default:      printf("p_%s {\n", buf); break;
			}
			printf("size=\"8,10\";\n");
			printf("  GT [shape=box,style=dotted,label=\"%s\"];\n", buf);
			printf("  GT -> S%d;\n", is);
		} else
		{	switch (Btypes[n]) {
			case I_PROC:  printf("init\n"); break;
			case N_CLAIM: printf("claim %s\n", procname[n]); break;
			case E_TRACE: printf("notrace assertion\n"); break;
			case N_TRACE: printf("trace assertion\n"); break;
			default:      printf("proctype %s\n", procname[n]); break;
		}	}
		for (i = 1; i < m; i++)
		{	reach[i] = 1;
		}
		tagtable(n, m, is, srcln, reach);
		if (dodot) printf("}\n");
	} else
	for (i = 1; i < m; i++)
	{	int nrelse;
		if (Btypes[n] != N_CLAIM)
		{	for (T0 = trans[n][i]; T0; T0 = T0->nxt)
			{	if (T0->st == i
				&& strcmp(T0->tp, "(1)") == 0)
				{	printf("error: proctype '%s' ",
						procname[n]);
		  			printf("line %d, state %d: has un",
						srcln[i], i);
					printf("conditional self-loop\n");
					pan_exit(1);
		}	}	}
		nrelse = 0;
		for (T0 = trans[n][i]; T0; T0 = T0->nxt)
		{	if (strcmp(T0->tp, "else") == 0)
				nrelse++;
		}
		if (nrelse > 1)
		{	printf("error: proctype '%s' state",
				procname[n]);
		  	printf(" %d, inherits %d", i, nrelse);
		  	printf(" 'else' stmnts\n");
			pan_exit(1);
	}	}
#if !defined(LOOPSTATE) && !defined(BFS_PAR)
	if (state_tables)
#endif
	do_dfs(n, m, is, srcln, reach, lpstate);

	if (!t_reverse)
	{	return;
	}
	/* process n, with m states, is=initial state -- reverse list */
	if (!state_tables && Btypes[n] != N_CLAIM)
	{	for (i = 1; i < m; i++)
		{	Trans *Tx = (Trans *) 0; /* list of escapes */
			Trans *Ty = (Trans *) 0; /* its tail element */
			T1 = (Trans *) 0; /* reversed list */
			T2 = (Trans *) 0; /* its tail */
			T3 = (Trans *) 0; /* remembers possible 'else' */

			/* find unless-escapes, they should go first */
			T4 = T5 = T0 = trans[n][i];
	#ifdef HAS_UNLESS
			while (T4 && T4->e_trans) /* escapes are first in orig list */
			{	T5 = T4;	  /* remember predecessor */
				T4 = T4->nxt;
			}
	#endif
			/* T4 points to first non-escape, T5 to its parent, T0 to original list */
			if (T4 != T0)		 /* there was at least one escape */
			{	T3 = T5->nxt;		 /* start of non-escapes */
				T5->nxt = (Trans *) 0;	 /* separate */
				Tx = T0;		 /* start of the escapes */
				Ty = T5;		 /* its tail */
				T0 = T3;		 /* the rest, to be reversed */
			}
			/* T0 points to first non-escape, Tx to the list of escapes, Ty to its tail */

			/* first tail-add non-escape transitions, reversed */
			T3 = (Trans *) 0;
			for (T5 = T0; T5; T5 = T4)
			{	T4 = T5->nxt;
	#ifdef HAS_UNLESS
				if (T5->e_trans)
				{	printf("error: cannot happen!\n");
					continue;
				}
	#endif
				if (strcmp(T5->tp, "else") == 0)
				{	T3 = T5;
					T5->nxt = (Trans *) 0;
				} else
				{	T5->nxt = T1;
					if (!T1) { T2 = T5; }
					T1 = T5;
			}	}
			/* T3 points to a possible else, which is removed from the list */
			/* T1 points to the reversed list so far (without escapes) */
			/* T2 points to the tail element -- where the else should go */
			if (T2 && T3)
			{	T2->nxt = T3;	/* add else */
			} else
			{	if (T3) /* there was an else, but there's no tail */
				{	if (!T1)	/* and no reversed list */
					{	T1 = T3; /* odd, but possible */
					} else		/* even stranger */
					{	T1->nxt = T3;
			}	}	}

			/* add in the escapes, to that they appear at the front */
			if (Tx && Ty) { Ty->nxt = T1; T1 = Tx; }

			trans[n][i] = T1;
			/* reversed, with escapes first and else last */
	}	}
	if (state_tables && verbose)
	{	printf("FINAL proctype %s\n", 
			procname[n]);
		for (i = 1; i < m; i++)
		for (T0 = trans[n][i]; T0; T0 = T0->nxt)
			crack(n, i, T0, srcln);
	}
}
void
imed(Trans *T, int v, int n, int j)	/* set intermediate state */
{	progstate[n][T->st] |= progstate[n][v];
	accpstate[n][T->st] |= accpstate[n][v];
	stopstate[n][T->st] |= stopstate[n][v];
	mapstate[n][j] = T->st;
}
void
tagtable(int n, int m, int is, short srcln[], uchar reach[])
{	Trans *z;

	if (is >= m || !trans[n][is]
	||  is <= 0 || reach[is] == 0)
		return;
	reach[is] = 0;
	if (state_tables)
	for (z = trans[n][is]; z; z = z->nxt)
	{	if (dodot)
			dot_crack(n, is, z);
		else
			crack(n, is, z, srcln);
	}

	for (z = trans[n][is]; z; z = z->nxt)
	{
#ifdef HAS_UNLESS
		int i, j;
#endif
		tagtable(n, m, z->st, srcln, reach);
#ifdef HAS_UNLESS
		for (i = 0; i < HAS_UNLESS; i++)
		{	j = trans[n][is]->escp[i];
			if (!j) break;
			tagtable(n, m, j, srcln, reach);
		}
#endif
	}
}

extern Trans *t_id_lkup[];

void
dfs_table(int n, int m, int is, short srcln[], uchar reach[], uchar lpstate[])
{	Trans *z;

	if (is >= m || is <= 0 || !trans[n][is])
		return;
	if ((reach[is] & (4|8|16)) != 0)
	{	if ((reach[is] & (8|16)) == 16)	/* on stack, not yet recorded */
		{	lpstate[is] = 1;
			reach[is] |= 8; /* recorded */
			if (state_tables && verbose)
			{	printf("state %d line %d is a loopstate\n", is, srcln[is]);
		}	}
		return;
	}
	reach[is] |= (4|16);	/* visited | onstack */
	for (z = trans[n][is]; z; z = z->nxt)
	{	t_id_lkup[z->t_id] = z;
#ifdef HAS_UNLESS
		int i, j;
#endif
		dfs_table(n, m, z->st, srcln, reach, lpstate);
#ifdef HAS_UNLESS
		for (i = 0; i < HAS_UNLESS; i++)
		{	j = trans[n][is]->escp[i];
			if (!j) break;
			dfs_table(n, m, j, srcln, reach, lpstate);
		}
#endif
	}
	reach[is] &= ~16; /* no longer on stack */
}
void
do_dfs(int n, int m, int is, short srcln[], uchar reach[], uchar lpstate[])
{	int i;
	dfs_table(n, m, is, srcln, reach, lpstate);
	for (i = 0; i < m; i++)
		reach[i] &= ~(4|8|16);
}
void
crack(int n, int j, Trans *z, short srcln[])
{	int i;

	if (!z) return;
	printf("	state %3d -(tr %3d)-> state %3d  ",
		j, z->forw, z->st);
	printf("[id %3d tp %3d", z->t_id, z->tpe[0]);
	if (z->tpe[1]) printf(",%d", z->tpe[1]);
#ifdef HAS_UNLESS
	if (z->e_trans)
		printf(" org %3d", z->e_trans);
	else if (state_tables >= 2)
	for (i = 0; i < HAS_UNLESS; i++)
	{	if (!z->escp[i]) break;
		printf(" esc %d", z->escp[i]);
	}
#endif
	printf("]");
	printf(" [%s%s%s%s%s] %s:%d => ",
		z->atom&6?"A":z->atom&32?"D":"-",
		accpstate[n][j]?"a" :"-",
		stopstate[n][j]?"e" : "-",
		progstate[n][j]?"p" : "-",
		z->atom & 8 ?"L":"G",
		PanSource, srcln[j]);
	for (i = 0; z->tp[i]; i++)
		if (z->tp[i] == '\n')
			printf("\\n");
		else
			putchar(z->tp[i]);
	if (verbose && z->qu[0])
	{	printf("\t[");
		for (i = 0; i < 6; i++)
			if (z->qu[i])
				printf("(%d,%d)",
				z->qu[i], z->ty[i]);
		printf("]");
	}
	printf("\n");
	fflush(stdout);
}
/* spin -a m.pml; cc -o pan pan.c; ./pan -D | dot -Tps > foo.ps; ps2pdf foo.ps */
void
dot_crack(int n, int j, Trans *z)
{	int i;

	if (!z) return;
	printf("	S%d -> S%d  [color=black", j, z->st);

	if (z->atom&6) printf(",style=dashed");
	else if (z->atom&32) printf(",style=dotted");
	else if (z->atom&8) printf(",style=solid");
	else printf(",style=bold");

	printf(",label=\"");
	for (i = 0; z->tp[i]; i++)
	{	if (z->tp[i] == '\\'
		&&  z->tp[i+1] == 'n')
		{	i++; printf(" ");
		} else
		{	putchar(z->tp[i]);
	}	}
	printf("\"];\n");
	if (accpstate[n][j]) printf("  S%d [color=red,style=bold];\n", j);
	else if (progstate[n][j]) printf("  S%d [color=green,style=bold];\n", j);
	if (stopstate[n][j]) printf("  S%d [color=blue,style=bold,shape=box];\n", j);
}

#ifdef VAR_RANGES
#define BYTESIZE	32	/* 2^8 : 2^3 = 256:8 = 32 */

typedef struct Vr_Ptr {
	char	*nm;
	uchar	vals[BYTESIZE];
	struct Vr_Ptr *nxt;
} Vr_Ptr;
Vr_Ptr *ranges = (Vr_Ptr *) 0;

void
logval(char *s, int v)
{	Vr_Ptr *tmp;

	if (v<0 || v > 255) return;
	for (tmp = ranges; tmp; tmp = tmp->nxt)
		if (!strcmp(tmp->nm, s))
			goto found;
	tmp = (Vr_Ptr *) emalloc(sizeof(Vr_Ptr));
	tmp->nxt = ranges;
	ranges = tmp;
	tmp->nm = s;
found:
	tmp->vals[(v)/8] |= 1<<((v)%8);
}

void
dumpval(uchar X[], int range)
{	int w, x, i, j = -1;

	for (w = i = 0; w < range; w++)
	for (x = 0; x < 8; x++, i++)
	{
from:		if ((X[w] & (1<<x)))
		{	printf("%d", i);
			j = i;
			goto upto;
	}	}
	return;
	for (w = 0; w < range; w++)
	for (x = 0; x < 8; x++, i++)
	{
upto:		if (!(X[w] & (1<<x)))
		{	if (i-1 == j)
				printf(", ");
			else
				printf("-%d, ", i-1);
			goto from;
	}	}
	if (j >= 0 && j != 255)
		printf("-255");
}

void
dumpranges(void)
{	Vr_Ptr *tmp;
	printf("\nValues assigned within ");
	printf("interval [0..255]:\n");
	for (tmp = ranges; tmp; tmp = tmp->nxt)
	{	printf("\t%s\t: ", tmp->nm);
		dumpval(tmp->vals, BYTESIZE);
		printf("\n");
	}
}
#endif
