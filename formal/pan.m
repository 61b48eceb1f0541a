#define rand	pan_rand
#define pthread_equal(a,b)	((a)==(b))
#if defined(HAS_CODE) && defined(VERBOSE)
	#ifdef BFS_PAR
		bfs_printf("Pr: %d Tr: %d\n", II, t->forw);
	#else
		cpu_printf("Pr: %d Tr: %d\n", II, t->forw);
	#endif
#endif
	switch (t->forw) {
	default: Uerror("bad forward move");
	case 0:	/* if without executable clauses */
		continue;
	case 1: /* generic 'goto' or 'skip' */
		IfNotBlocked
		_m = 3; goto P999;
	case 2: /* generic 'else' */
		IfNotBlocked
		if (trpt->o_pm&1) continue;
		_m = 3; goto P999;

		 /* PROC :init: */
	case 3: // STATE 1 - layer.pml:341 - [r = 0] (0:0:1 - 1)
		IfNotBlocked
		reached[3][1] = 1;
		(trpt+1)->bup.oval = ((int)((P3 *)_this)->_4_11_r);
		((P3 *)_this)->_4_11_r = 0;
#ifdef VAR_RANGES
		logval(":init::r", ((int)((P3 *)_this)->_4_11_r));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 4: // STATE 2 - layer.pml:342 - [((r<2))] (0:0:0 - 1)
		IfNotBlocked
		reached[3][2] = 1;
		if (!((((int)((P3 *)_this)->_4_11_r)<2)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 5: // STATE 3 - layer.pml:342 - [(run Rank(0,r))] (0:0:0 - 1)
		IfNotBlocked
		reached[3][3] = 1;
		if (!(addproc(II, 1, 1, 0, ((int)((P3 *)_this)->_4_11_r), 0)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 6: // STATE 4 - layer.pml:342 - [r = (r+1)] (0:0:1 - 1)
		IfNotBlocked
		reached[3][4] = 1;
		(trpt+1)->bup.oval = ((int)((P3 *)_this)->_4_11_r);
		((P3 *)_this)->_4_11_r = (((int)((P3 *)_this)->_4_11_r)+1);
#ifdef VAR_RANGES
		logval(":init::r", ((int)((P3 *)_this)->_4_11_r));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 7: // STATE 10 - layer.pml:345 - [(run World())] (0:0:0 - 1)
		IfNotBlocked
		reached[3][10] = 1;
		if (!(addproc(II, 1, 2, 0, 0, 0)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 8: // STATE 12 - layer.pml:347 - [-end-] (0:0:0 - 1)
		IfNotBlocked
		reached[3][12] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */

		 /* PROC World */
	case 9: // STATE 1 - layer.pml:311 - [(((0==1)||(0==3)))] (0:0:0 - 1)
		IfNotBlocked
		reached[2][1] = 1;
		if (!(((0==1)||(0==3))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 10: // STATE 2 - layer.pml:313 - [((verdict[0]==1))] (0:0:0 - 1)
		IfNotBlocked
		reached[2][2] = 1;
		if (!((((int)now.verdict[0])==1)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 11: // STATE 3 - layer.pml:315 - [((verdict[0]==1))] (32:0:1 - 1)
		IfNotBlocked
		reached[2][3] = 1;
		if (!((((int)now.verdict[0])==1)))
			continue;
		/* merge: verdict[0] = 3(32, 4, 32) */
		reached[2][4] = 1;
		(trpt+1)->bup.oval = ((int)now.verdict[0]);
		now.verdict[0] = 3;
#ifdef VAR_RANGES
		logval("verdict[0]", ((int)now.verdict[0]));
#endif
		;
		/* merge: .(goto)(32, 7, 32) */
		reached[2][7] = 1;
		;
		/* merge: goto :b8(0, 9, 32) */
		reached[2][9] = 1;
		;
		_m = 3; goto P999; /* 3 */
	case 12: // STATE 7 - layer.pml:318 - [.(goto)] (0:32:0 - 2)
		IfNotBlocked
		reached[2][7] = 1;
		;
		/* merge: goto :b8(0, 9, 32) */
		reached[2][9] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 13: // STATE 17 - layer.pml:324 - [((0>=2))] (22:0:1 - 1)
		IfNotBlocked
		reached[2][17] = 1;
		if (!((0>=2)))
			continue;
		/* merge: who = 0(0, 18, 22) */
		reached[2][18] = 1;
		(trpt+1)->bup.oval = ((int)((P2 *)_this)->who);
		((P2 *)_this)->who = 0;
#ifdef VAR_RANGES
		logval("World:who", ((int)((P2 *)_this)->who));
#endif
		;
		/* merge: .(goto)(0, 23, 22) */
		reached[2][23] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 14: // STATE 19 - layer.pml:325 - [((who<(2-1)))] (22:0:1 - 1)
		IfNotBlocked
		reached[2][19] = 1;
		if (!((((int)((P2 *)_this)->who)<(2-1))))
			continue;
		/* merge: who = (who+1)(0, 20, 22) */
		reached[2][20] = 1;
		(trpt+1)->bup.oval = ((int)((P2 *)_this)->who);
		((P2 *)_this)->who = (((int)((P2 *)_this)->who)+1);
#ifdef VAR_RANGES
		logval("World:who", ((int)((P2 *)_this)->who));
#endif
		;
		/* merge: .(goto)(0, 23, 22) */
		reached[2][23] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 15: // STATE 25 - layer.pml:327 - [alive[((0*2)+who)] = 0] (0:0:1 - 1)
		IfNotBlocked
		reached[2][25] = 1;
		(trpt+1)->bup.oval = ((int)now.alive[ Index(((0*2)+((int)((P2 *)_this)->who)), 4) ]);
		now.alive[ Index(((0*2)+((P2 *)_this)->who), 4) ] = 0;
#ifdef VAR_RANGES
		logval("alive[((0*2)+World:who)]", ((int)now.alive[ Index(((0*2)+((int)((P2 *)_this)->who)), 4) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 16: // STATE 26 - layer.pml:328 - [poisoned[0] = 1] (0:0:1 - 1)
		IfNotBlocked
		reached[2][26] = 1;
		(trpt+1)->bup.oval = ((int)now.poisoned[0]);
		now.poisoned[0] = 1;
#ifdef VAR_RANGES
		logval("poisoned[0]", ((int)now.poisoned[0]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 17: // STATE 27 - layer.pml:330 - [(run Rank(1,who))] (0:0:1 - 1)
		IfNotBlocked
		reached[2][27] = 1;
		if (!(addproc(II, 1, 1, 1, ((int)((P2 *)_this)->who), 0)))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: who */  (trpt+1)->bup.oval = ((P2 *)_this)->who;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P2 *)_this)->who = 0;
		_m = 3; goto P999; /* 0 */
	case 18: // STATE 34 - layer.pml:336 - [-end-] (0:0:0 - 5)
		IfNotBlocked
		reached[2][34] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */

		 /* PROC Rank */
	case 19: // STATE 1 - layer.pml:137 - [seq = 0] (0:0:1 - 1)
		IfNotBlocked
		reached[1][1] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->seq);
		((P1 *)_this)->seq = 0;
#ifdef VAR_RANGES
		logval("Rank:seq", ((int)((P1 *)_this)->seq));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 20: // STATE 2 - layer.pml:139 - [((e>2))] (0:0:1 - 1)
		IfNotBlocked
		reached[1][2] = 1;
		if (!((((int)((P1 *)_this)->e)>2)))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: e */  (trpt+1)->bup.oval = ((P1 *)_this)->e;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->e = 0;
		_m = 3; goto P999; /* 0 */
	case 21: // STATE 5 - layer.pml:142 - [(!(alive[((g*2)+r)]))] (0:0:2 - 1)
		IfNotBlocked
		reached[1][5] = 1;
		if (!( !(((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: g */  (trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((P1 *)_this)->g;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->g = 0;
		if (TstOnly) return 1; /* TT */
		/* dead 1: r */  (trpt+1)->bup.ovals[1] = ((P1 *)_this)->r;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->r = 0;
		_m = 3; goto P999; /* 0 */
	case 22: // STATE 10 - layer.pml:147 - [((r==0))] (18:0:1 - 1)
		IfNotBlocked
		reached[1][10] = 1;
		if (!((((int)((P1 *)_this)->r)==0)))
			continue;
		/* merge: i = 0(0, 11, 18) */
		reached[1][11] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->i);
		((P1 *)_this)->i = 0;
#ifdef VAR_RANGES
		logval("Rank:i", ((int)((P1 *)_this)->i));
#endif
		;
		/* merge: .(goto)(0, 19, 18) */
		reached[1][19] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 23: // STATE 12 - layer.pml:150 - [(((i<2)&&((returned[((g*2)+i)]>=(e-1))||poisoned[g])))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][12] = 1;
		if (!(((((int)((P1 *)_this)->i)<2)&&((((int)now.returned[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->i)), 4) ])>=(((int)((P1 *)_this)->e)-1))||((int)now.poisoned[ Index(((int)((P1 *)_this)->g), 2) ])))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 24: // STATE 13 - layer.pml:150 - [i = (i+1)] (0:0:1 - 1)
		IfNotBlocked
		reached[1][13] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->i);
		((P1 *)_this)->i = (((int)((P1 *)_this)->i)+1);
#ifdef VAR_RANGES
		logval("Rank:i", ((int)((P1 *)_this)->i));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 25: // STATE 14 - layer.pml:151 - [((i==2))] (0:0:1 - 1)
		IfNotBlocked
		reached[1][14] = 1;
		if (!((((int)((P1 *)_this)->i)==2)))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: i */  (trpt+1)->bup.oval = ((P1 *)_this)->i;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->i = 0;
		_m = 3; goto P999; /* 0 */
	case 26: // STATE 16 - layer.pml:152 - [(!(alive[((g*2)+r)]))] (0:0:2 - 1)
		IfNotBlocked
		reached[1][16] = 1;
		if (!( !(((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: g */  (trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((P1 *)_this)->g;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->g = 0;
		if (TstOnly) return 1; /* TT */
		/* dead 1: r */  (trpt+1)->bup.ovals[1] = ((P1 *)_this)->r;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->r = 0;
		_m = 3; goto P999; /* 0 */
	case 27: // STATE 21 - layer.pml:155 - [(poisoned[g])] (0:0:0 - 1)
		IfNotBlocked
		reached[1][21] = 1;
		if (!(((int)now.poisoned[ Index(((int)((P1 *)_this)->g), 2) ])))
			continue;
		_m = 3; goto P999; /* 0 */
	case 28: // STATE 26 - layer.pml:158 - [verdict[g] = 1] (0:42:2 - 1)
		IfNotBlocked
		reached[1][26] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ]);
		now.verdict[ Index(((P1 *)_this)->g, 2) ] = 1;
#ifdef VAR_RANGES
		logval("verdict[Rank:g]", ((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ]));
#endif
		;
		/* merge: epoch_now[g] = e(42, 27, 42) */
		reached[1][27] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.epoch_now[ Index(((int)((P1 *)_this)->g), 2) ]);
		now.epoch_now[ Index(((P1 *)_this)->g, 2) ] = ((int)((P1 *)_this)->e);
#ifdef VAR_RANGES
		logval("epoch_now[Rank:g]", ((int)now.epoch_now[ Index(((int)((P1 *)_this)->g), 2) ]));
#endif
		;
		/* merge: .(goto)(0, 41, 42) */
		reached[1][41] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 29: // STATE 30 - layer.pml:161 - [(((epoch_now[g]>=e)||poisoned[g]))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][30] = 1;
		if (!(((((int)now.epoch_now[ Index(((int)((P1 *)_this)->g), 2) ])>=((int)((P1 *)_this)->e))||((int)now.poisoned[ Index(((int)((P1 *)_this)->g), 2) ]))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 30: // STATE 31 - layer.pml:162 - [(!(alive[((g*2)+r)]))] (0:0:2 - 1)
		IfNotBlocked
		reached[1][31] = 1;
		if (!( !(((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: g */  (trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((P1 *)_this)->g;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->g = 0;
		if (TstOnly) return 1; /* TT */
		/* dead 1: r */  (trpt+1)->bup.ovals[1] = ((P1 *)_this)->r;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->r = 0;
		_m = 3; goto P999; /* 0 */
	case 31: // STATE 35 - layer.pml:165 - [(poisoned[g])] (0:0:0 - 1)
		IfNotBlocked
		reached[1][35] = 1;
		if (!(((int)now.poisoned[ Index(((int)((P1 *)_this)->g), 2) ])))
			continue;
		_m = 3; goto P999; /* 0 */
	case 32: // STATE 42 - layer.pml:169 - [running[((g*2)+r)] = 1] (0:0:1 - 4)
		IfNotBlocked
		reached[1][42] = 1;
		(trpt+1)->bup.oval = ((int)now.running[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]);
		now.running[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->r), 4) ] = 1;
#ifdef VAR_RANGES
		logval("running[((Rank:g*2)+Rank:r)]", ((int)now.running[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 33: // STATE 43 - layer.pml:170 - [(run Consumer(g,r,e))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][43] = 1;
		if (!(addproc(II, 1, 0, ((int)((P1 *)_this)->g), ((int)((P1 *)_this)->r), ((int)((P1 *)_this)->e))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 34: // STATE 44 - layer.pml:171 - [join_epoch[((g*2)+r)] = e] (0:0:1 - 1)
		IfNotBlocked
		reached[1][44] = 1;
		(trpt+1)->bup.oval = ((int)join_epoch[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]);
		join_epoch[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->r), 4) ] = ((int)((P1 *)_this)->e);
#ifdef VAR_RANGES
		logval("join_epoch[((Rank:g*2)+Rank:r)]", ((int)join_epoch[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 35: // STATE 45 - layer.pml:174 - [((r==0))] (84:0:1 - 1)
		IfNotBlocked
		reached[1][45] = 1;
		if (!((((int)((P1 *)_this)->r)==0)))
			continue;
		/* merge: piece = 0(0, 46, 84) */
		reached[1][46] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->piece);
		((P1 *)_this)->piece = 0;
#ifdef VAR_RANGES
		logval("Rank:piece", ((int)((P1 *)_this)->piece));
#endif
		;
		/* merge: .(goto)(0, 85, 84) */
		reached[1][85] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 36: // STATE 47 - layer.pml:177 - [(!(alive[((g*2)+0)]))] (0:0:1 - 1)
		IfNotBlocked
		reached[1][47] = 1;
		if (!( !(((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+0), 4) ]))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: g */  (trpt+1)->bup.oval = ((P1 *)_this)->g;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->g = 0;
		_m = 3; goto P999; /* 0 */
	case 37: // STATE 49 - layer.pml:178 - [((poisoned[g]||((epoch_now[g]==e)&&(verdict[g]==3))))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][49] = 1;
		if (!((((int)now.poisoned[ Index(((int)((P1 *)_this)->g), 2) ])||((((int)now.epoch_now[ Index(((int)((P1 *)_this)->g), 2) ])==((int)((P1 *)_this)->e))&&(((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ])==3)))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 38: // STATE 51 - layer.pml:179 - [((piece==3))] (0:0:1 - 1)
		IfNotBlocked
		reached[1][51] = 1;
		if (!((((int)((P1 *)_this)->piece)==3)))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: piece */  (trpt+1)->bup.oval = ((P1 *)_this)->piece;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->piece = 0;
		_m = 3; goto P999; /* 0 */
	case 39: // STATE 53 - layer.pml:180 - [((piece<3))] (62:0:2 - 1)
		IfNotBlocked
		reached[1][53] = 1;
		if (!((((int)((P1 *)_this)->piece)<3)))
			continue;
		/* merge: s = (piece%2)(62, 54, 62) */
		reached[1][54] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)((P1 *)_this)->s);
		((P1 *)_this)->s = (((int)((P1 *)_this)->piece)%2);
#ifdef VAR_RANGES
		logval("Rank:s", ((int)((P1 *)_this)->s));
#endif
		;
		/* merge: i = 0(62, 55, 62) */
		reached[1][55] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P1 *)_this)->i);
		((P1 *)_this)->i = 0;
#ifdef VAR_RANGES
		logval("Rank:i", ((int)((P1 *)_this)->i));
#endif
		;
		/* merge: .(goto)(0, 63, 62) */
		reached[1][63] = 1;
		;
		_m = 3; goto P999; /* 3 */
	case 40: // STATE 56 - layer.pml:184 - [(((i<2)&&((((ack[((((g*2)+i)*2)+s)]>=ready_seq[((g*2)+s)])||poisoned[g])||((epoch_now[g]==e)&&(verdict[g]==3)))||0)))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][56] = 1;
		if (!(((((int)((P1 *)_this)->i)<2)&&((((((int)now.ack[ Index(((((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->i))*2)+((int)((P1 *)_this)->s)), 8) ])>=((int)now.ready_seq[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]))||((int)now.poisoned[ Index(((int)((P1 *)_this)->g), 2) ]))||((((int)now.epoch_now[ Index(((int)((P1 *)_this)->g), 2) ])==((int)((P1 *)_this)->e))&&(((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ])==3)))||0))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 41: // STATE 57 - layer.pml:184 - [i = (i+1)] (0:0:1 - 1)
		IfNotBlocked
		reached[1][57] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->i);
		((P1 *)_this)->i = (((int)((P1 *)_this)->i)+1);
#ifdef VAR_RANGES
		logval("Rank:i", ((int)((P1 *)_this)->i));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 42: // STATE 58 - layer.pml:185 - [((i==2))] (0:0:1 - 1)
		IfNotBlocked
		reached[1][58] = 1;
		if (!((((int)((P1 *)_this)->i)==2)))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: i */  (trpt+1)->bup.oval = ((P1 *)_this)->i;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->i = 0;
		_m = 3; goto P999; /* 0 */
	case 43: // STATE 60 - layer.pml:186 - [(!(alive[((g*2)+0)]))] (0:0:1 - 1)
		IfNotBlocked
		reached[1][60] = 1;
		if (!( !(((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+0), 4) ]))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: g */  (trpt+1)->bup.oval = ((P1 *)_this)->g;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->g = 0;
		_m = 3; goto P999; /* 0 */
	case 44: // STATE 65 - layer.pml:189 - [((poisoned[g]||((epoch_now[g]==e)&&(verdict[g]==3))))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][65] = 1;
		if (!((((int)now.poisoned[ Index(((int)((P1 *)_this)->g), 2) ])||((((int)now.epoch_now[ Index(((int)((P1 *)_this)->g), 2) ])==((int)((P1 *)_this)->e))&&(((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ])==3)))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 45: // STATE 70 - layer.pml:192 - [slot_epoch[((g*2)+s)] = e] (0:76:2 - 1)
		IfNotBlocked
		reached[1][70] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)now.slot_epoch[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]);
		now.slot_epoch[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->s), 4) ] = ((int)((P1 *)_this)->e);
#ifdef VAR_RANGES
		logval("slot_epoch[((Rank:g*2)+Rank:s)]", ((int)now.slot_epoch[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]));
#endif
		;
		/* merge: slot_piece[((g*2)+s)] = piece(76, 71, 76) */
		reached[1][71] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.slot_piece[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]);
		now.slot_piece[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->s), 4) ] = ((int)((P1 *)_this)->piece);
#ifdef VAR_RANGES
		logval("slot_piece[((Rank:g*2)+Rank:s)]", ((int)now.slot_piece[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]));
#endif
		;
		_m = 3; goto P999; /* 1 */
	case 46: // STATE 73 - layer.pml:194 - [(!(alive[((g*2)+0)]))] (0:0:1 - 1)
		IfNotBlocked
		reached[1][73] = 1;
		if (!( !(((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+0), 4) ]))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: g */  (trpt+1)->bup.oval = ((P1 *)_this)->g;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->g = 0;
		_m = 3; goto P999; /* 0 */
	case 47: // STATE 78 - layer.pml:197 - [ready_epoch[((g*2)+s)] = e] (0:0:1 - 2)
		IfNotBlocked
		reached[1][78] = 1;
		(trpt+1)->bup.oval = ((int)now.ready_epoch[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]);
		now.ready_epoch[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->s), 4) ] = ((int)((P1 *)_this)->e);
#ifdef VAR_RANGES
		logval("ready_epoch[((Rank:g*2)+Rank:s)]", ((int)now.ready_epoch[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 48: // STATE 79 - layer.pml:198 - [ready_number[((g*2)+s)] = piece] (0:0:1 - 1)
		IfNotBlocked
		reached[1][79] = 1;
		(trpt+1)->bup.oval = ((int)now.ready_number[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]);
		now.ready_number[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->s), 4) ] = ((int)((P1 *)_this)->piece);
#ifdef VAR_RANGES
		logval("ready_number[((Rank:g*2)+Rank:s)]", ((int)now.ready_number[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 49: // STATE 80 - layer.pml:199 - [seq = (seq+1)] (0:84:3 - 1)
		IfNotBlocked
		reached[1][80] = 1;
		(trpt+1)->bup.ovals = grab_ints(3);
		(trpt+1)->bup.ovals[0] = ((int)((P1 *)_this)->seq);
		((P1 *)_this)->seq = (((int)((P1 *)_this)->seq)+1);
#ifdef VAR_RANGES
		logval("Rank:seq", ((int)((P1 *)_this)->seq));
#endif
		;
		/* merge: ready_seq[((g*2)+s)] = seq(84, 81, 84) */
		reached[1][81] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.ready_seq[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]);
		now.ready_seq[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->s), 4) ] = ((int)((P1 *)_this)->seq);
#ifdef VAR_RANGES
		logval("ready_seq[((Rank:g*2)+Rank:s)]", ((int)now.ready_seq[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]));
#endif
		;
		/* merge: piece = (piece+1)(84, 83, 84) */
		reached[1][83] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P1 *)_this)->piece);
		((P1 *)_this)->piece = (((int)((P1 *)_this)->piece)+1);
#ifdef VAR_RANGES
		logval("Rank:piece", ((int)((P1 *)_this)->piece));
#endif
		;
		/* merge: .(goto)(0, 85, 84) */
		reached[1][85] = 1;
		;
		_m = 3; goto P999; /* 3 */
	case 50: // STATE 87 - layer.pml:203 - [(!((poisoned[g]||((epoch_now[g]==e)&&(verdict[g]==3)))))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][87] = 1;
		if (!( !((((int)now.poisoned[ Index(((int)((P1 *)_this)->g), 2) ])||((((int)now.epoch_now[ Index(((int)((P1 *)_this)->g), 2) ])==((int)((P1 *)_this)->e))&&(((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ])==3))))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 51: // STATE 88 - layer.pml:204 - [s = 0] (0:0:1 - 1)
		IfNotBlocked
		reached[1][88] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->s);
		((P1 *)_this)->s = 0;
#ifdef VAR_RANGES
		logval("Rank:s", ((int)((P1 *)_this)->s));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 52: // STATE 89 - layer.pml:206 - [((s<2))] (97:0:1 - 1)
		IfNotBlocked
		reached[1][89] = 1;
		if (!((((int)((P1 *)_this)->s)<2)))
			continue;
		/* merge: i = 0(0, 90, 97) */
		reached[1][90] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->i);
		((P1 *)_this)->i = 0;
#ifdef VAR_RANGES
		logval("Rank:i", ((int)((P1 *)_this)->i));
#endif
		;
		/* merge: .(goto)(0, 98, 97) */
		reached[1][98] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 53: // STATE 91 - layer.pml:209 - [(((i<2)&&(((ack[((((g*2)+i)*2)+s)]>=ready_seq[((g*2)+s)])||poisoned[g])||((epoch_now[g]==e)&&(verdict[g]==3)))))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][91] = 1;
		if (!(((((int)((P1 *)_this)->i)<2)&&(((((int)now.ack[ Index(((((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->i))*2)+((int)((P1 *)_this)->s)), 8) ])>=((int)now.ready_seq[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->s)), 4) ]))||((int)now.poisoned[ Index(((int)((P1 *)_this)->g), 2) ]))||((((int)now.epoch_now[ Index(((int)((P1 *)_this)->g), 2) ])==((int)((P1 *)_this)->e))&&(((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ])==3))))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 54: // STATE 92 - layer.pml:209 - [i = (i+1)] (0:0:1 - 1)
		IfNotBlocked
		reached[1][92] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->i);
		((P1 *)_this)->i = (((int)((P1 *)_this)->i)+1);
#ifdef VAR_RANGES
		logval("Rank:i", ((int)((P1 *)_this)->i));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 55: // STATE 93 - layer.pml:210 - [((i==2))] (103:0:2 - 1)
		IfNotBlocked
		reached[1][93] = 1;
		if (!((((int)((P1 *)_this)->i)==2)))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: i */  (trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((P1 *)_this)->i;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->i = 0;
		/* merge: goto :b7(103, 94, 103) */
		reached[1][94] = 1;
		;
		/* merge: s = (s+1)(103, 100, 103) */
		reached[1][100] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P1 *)_this)->s);
		((P1 *)_this)->s = (((int)((P1 *)_this)->s)+1);
#ifdef VAR_RANGES
		logval("Rank:s", ((int)((P1 *)_this)->s));
#endif
		;
		/* merge: .(goto)(0, 104, 103) */
		reached[1][104] = 1;
		;
		_m = 3; goto P999; /* 3 */
	case 56: // STATE 95 - layer.pml:211 - [(!(alive[((g*2)+0)]))] (0:0:1 - 1)
		IfNotBlocked
		reached[1][95] = 1;
		if (!( !(((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+0), 4) ]))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: g */  (trpt+1)->bup.oval = ((P1 *)_this)->g;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->g = 0;
		_m = 3; goto P999; /* 0 */
	case 57: // STATE 100 - layer.pml:213 - [s = (s+1)] (0:103:1 - 3)
		IfNotBlocked
		reached[1][100] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->s);
		((P1 *)_this)->s = (((int)((P1 *)_this)->s)+1);
#ifdef VAR_RANGES
		logval("Rank:s", ((int)((P1 *)_this)->s));
#endif
		;
		/* merge: .(goto)(0, 104, 103) */
		reached[1][104] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 58: // STATE 109 - layer.pml:219 - [(poisoned[g])] (0:0:0 - 1)
		IfNotBlocked
		reached[1][109] = 1;
		if (!(((int)now.poisoned[ Index(((int)((P1 *)_this)->g), 2) ])))
			continue;
		_m = 3; goto P999; /* 0 */
	case 59: // STATE 114 - layer.pml:233 - [((verdict[g]==1))] (123:0:1 - 1)
		IfNotBlocked
		reached[1][114] = 1;
		if (!((((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ])==1)))
			continue;
		/* merge: verdict[g] = 2(123, 115, 123) */
		reached[1][115] = 1;
		(trpt+1)->bup.oval = ((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ]);
		now.verdict[ Index(((P1 *)_this)->g, 2) ] = 2;
#ifdef VAR_RANGES
		logval("verdict[Rank:g]", ((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ]));
#endif
		;
		/* merge: .(goto)(123, 118, 123) */
		reached[1][118] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 60: // STATE 118 - layer.pml:236 - [.(goto)] (0:123:0 - 2)
		IfNotBlocked
		reached[1][118] = 1;
		;
		_m = 3; goto P999; /* 0 */
	case 61: // STATE 120 - layer.pml:238 - [(((verdict[g]==2)&&alive[((g*2)+0)]))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][120] = 1;
		if (!(((((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ])==2)&&((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+0), 4) ]))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 62: // STATE 121 - layer.pml:238 - [producer_done[g] = e] (0:0:1 - 1)
		IfNotBlocked
		reached[1][121] = 1;
		(trpt+1)->bup.oval = ((int)now.producer_done[ Index(((int)((P1 *)_this)->g), 2) ]);
		now.producer_done[ Index(((P1 *)_this)->g, 2) ] = ((int)((P1 *)_this)->e);
#ifdef VAR_RANGES
		logval("producer_done[Rank:g]", ((int)now.producer_done[ Index(((int)((P1 *)_this)->g), 2) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 63: // STATE 128 - layer.pml:246 - [(((done_epoch[((g*2)+r)]>=e)&&(producer_done[g]>=e)))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][128] = 1;
		if (!(((((int)now.done_epoch[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ])>=((int)((P1 *)_this)->e))&&(((int)now.producer_done[ Index(((int)((P1 *)_this)->g), 2) ])>=((int)((P1 *)_this)->e)))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 64: // STATE 129 - layer.pml:67 - [assert(((outcome[((g*(2+1))+e)]==0)||(outcome[((g*(2+1))+e)]==2)))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][129] = 1;
		spin_assert(((((int)now.outcome[ Index(((((int)((P1 *)_this)->g)*(2+1))+((int)((P1 *)_this)->e)), 6) ])==0)||(((int)now.outcome[ Index(((((int)((P1 *)_this)->g)*(2+1))+((int)((P1 *)_this)->e)), 6) ])==2)), "((outcome[((g*(2+1))+e)]==0)||(outcome[((g*(2+1))+e)]==2))", II, tt, t);
		_m = 3; goto P999; /* 0 */
	case 65: // STATE 130 - layer.pml:68 - [outcome[((g*(2+1))+e)] = 2] (0:0:1 - 1)
		IfNotBlocked
		reached[1][130] = 1;
		(trpt+1)->bup.oval = ((int)now.outcome[ Index(((((int)((P1 *)_this)->g)*(2+1))+((int)((P1 *)_this)->e)), 6) ]);
		now.outcome[ Index(((((P1 *)_this)->g*(2+1))+((P1 *)_this)->e), 6) ] = 2;
#ifdef VAR_RANGES
		logval("outcome[((Rank:g*(2+1))+Rank:e)]", ((int)now.outcome[ Index(((((int)((P1 *)_this)->g)*(2+1))+((int)((P1 *)_this)->e)), 6) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 66: // STATE 132 - layer.pml:247 - [((((epoch_now[g]==e)&&(verdict[g]==3))&&!(((done_epoch[((g*2)+r)]>=e)&&(producer_done[g]>=e)))))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][132] = 1;
		if (!((((((int)now.epoch_now[ Index(((int)((P1 *)_this)->g), 2) ])==((int)((P1 *)_this)->e))&&(((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ])==3))&& !(((((int)now.done_epoch[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ])>=((int)((P1 *)_this)->e))&&(((int)now.producer_done[ Index(((int)((P1 *)_this)->g), 2) ])>=((int)((P1 *)_this)->e)))))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 67: // STATE 133 - layer.pml:67 - [assert(((outcome[((g*(2+1))+e)]==0)||(outcome[((g*(2+1))+e)]==3)))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][133] = 1;
		spin_assert(((((int)now.outcome[ Index(((((int)((P1 *)_this)->g)*(2+1))+((int)((P1 *)_this)->e)), 6) ])==0)||(((int)now.outcome[ Index(((((int)((P1 *)_this)->g)*(2+1))+((int)((P1 *)_this)->e)), 6) ])==3)), "((outcome[((g*(2+1))+e)]==0)||(outcome[((g*(2+1))+e)]==3))", II, tt, t);
		_m = 3; goto P999; /* 0 */
	case 68: // STATE 134 - layer.pml:68 - [outcome[((g*(2+1))+e)] = 3] (0:0:1 - 1)
		IfNotBlocked
		reached[1][134] = 1;
		(trpt+1)->bup.oval = ((int)now.outcome[ Index(((((int)((P1 *)_this)->g)*(2+1))+((int)((P1 *)_this)->e)), 6) ]);
		now.outcome[ Index(((((P1 *)_this)->g*(2+1))+((P1 *)_this)->e), 6) ] = 3;
#ifdef VAR_RANGES
		logval("outcome[((Rank:g*(2+1))+Rank:e)]", ((int)now.outcome[ Index(((((int)((P1 *)_this)->g)*(2+1))+((int)((P1 *)_this)->e)), 6) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 69: // STATE 136 - layer.pml:248 - [(((poisoned[g]&&!(((epoch_now[g]==e)&&(verdict[g]==3))))&&!(((done_epoch[((g*2)+r)]>=e)&&(producer_done[g]>=e)))))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][136] = 1;
		if (!(((((int)now.poisoned[ Index(((int)((P1 *)_this)->g), 2) ])&& !(((((int)now.epoch_now[ Index(((int)((P1 *)_this)->g), 2) ])==((int)((P1 *)_this)->e))&&(((int)now.verdict[ Index(((int)((P1 *)_this)->g), 2) ])==3))))&& !(((((int)now.done_epoch[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ])>=((int)((P1 *)_this)->e))&&(((int)now.producer_done[ Index(((int)((P1 *)_this)->g), 2) ])>=((int)((P1 *)_this)->e)))))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 70: // STATE 137 - layer.pml:249 - [assert((producer_done[g]<e))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][137] = 1;
		spin_assert((((int)now.producer_done[ Index(((int)((P1 *)_this)->g), 2) ])<((int)((P1 *)_this)->e)), "(producer_done[g]<e)", II, tt, t);
		_m = 3; goto P999; /* 0 */
	case 71: // STATE 139 - layer.pml:251 - [(!(alive[((g*2)+r)]))] (0:0:2 - 1)
		IfNotBlocked
		reached[1][139] = 1;
		if (!( !(((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: g */  (trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((P1 *)_this)->g;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->g = 0;
		if (TstOnly) return 1; /* TT */
		/* dead 1: r */  (trpt+1)->bup.ovals[1] = ((P1 *)_this)->r;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->r = 0;
		_m = 3; goto P999; /* 0 */
	case 72: // STATE 143 - layer.pml:253 - [ended[r] = (ended[r]+1)] (0:0:1 - 3)
		IfNotBlocked
		reached[1][143] = 1;
		(trpt+1)->bup.oval = ((int)now.ended[ Index(((int)((P1 *)_this)->r), 2) ]);
		now.ended[ Index(((P1 *)_this)->r, 2) ] = (((int)now.ended[ Index(((int)((P1 *)_this)->r), 2) ])+1);
#ifdef VAR_RANGES
		logval("ended[Rank:r]", ((int)now.ended[ Index(((int)((P1 *)_this)->r), 2) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 73: // STATE 144 - layer.pml:255 - [((!(running[((g*2)+r)])||!(alive[((g*2)+r)])))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][144] = 1;
		if (!(( !(((int)now.running[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]))|| !(((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ])))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 74: // STATE 147 - layer.pml:257 - [returned[((g*2)+r)] = e] (0:0:1 - 2)
		IfNotBlocked
		reached[1][147] = 1;
		(trpt+1)->bup.oval = ((int)now.returned[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]);
		now.returned[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->r), 4) ] = ((int)((P1 *)_this)->e);
#ifdef VAR_RANGES
		logval("returned[((Rank:g*2)+Rank:r)]", ((int)now.returned[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 75: // STATE 148 - layer.pml:258 - [e = (e+1)] (0:0:1 - 1)
		IfNotBlocked
		reached[1][148] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->e);
		((P1 *)_this)->e = (((int)((P1 *)_this)->e)+1);
#ifdef VAR_RANGES
		logval("Rank:e", ((int)((P1 *)_this)->e));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 76: // STATE 153 - layer.pml:262 - [ended[r] = (ended[r]+1)] (0:0:1 - 8)
		IfNotBlocked
		reached[1][153] = 1;
		(trpt+1)->bup.oval = ((int)now.ended[ Index(((int)((P1 *)_this)->r), 2) ]);
		now.ended[ Index(((P1 *)_this)->r, 2) ] = (((int)now.ended[ Index(((int)((P1 *)_this)->r), 2) ])+1);
#ifdef VAR_RANGES
		logval("ended[Rank:r]", ((int)now.ended[ Index(((int)((P1 *)_this)->r), 2) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 77: // STATE 154 - layer.pml:264 - [((!(running[((g*2)+r)])||!(alive[((g*2)+r)])))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][154] = 1;
		if (!(( !(((int)now.running[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]))|| !(((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ])))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 78: // STATE 157 - layer.pml:268 - [((((g+1)<2)&&alive[((g*2)+r)]))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][157] = 1;
		if (!((((((int)((P1 *)_this)->g)+1)<2)&&((int)now.alive[ Index(((((int)((P1 *)_this)->g)*2)+((int)((P1 *)_this)->r)), 4) ]))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 79: // STATE 158 - layer.pml:294 - [g = (g+1)] (0:1:2 - 1)
		IfNotBlocked
		reached[1][158] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)((P1 *)_this)->g);
		((P1 *)_this)->g = (((int)((P1 *)_this)->g)+1);
#ifdef VAR_RANGES
		logval("Rank:g", ((int)((P1 *)_this)->g));
#endif
		;
		/* merge: e = 1(1, 159, 1) */
		reached[1][159] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P1 *)_this)->e);
		((P1 *)_this)->e = 1;
#ifdef VAR_RANGES
		logval("Rank:e", ((int)((P1 *)_this)->e));
#endif
		;
		/* merge: goto again(0, 160, 1) */
		reached[1][160] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 80: // STATE 167 - layer.pml:305 - [-end-] (0:0:0 - 1)
		IfNotBlocked
		reached[1][167] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */

		 /* PROC Consumer */
	case 81: // STATE 1 - layer.pml:79 - [s = 0] (0:0:1 - 1)
		IfNotBlocked
		reached[0][1] = 1;
		(trpt+1)->bup.oval = ((int)((P0 *)_this)->s);
		((P0 *)_this)->s = 0;
#ifdef VAR_RANGES
		logval("Consumer:s", ((int)((P0 *)_this)->s));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 82: // STATE 2 - layer.pml:81 - [((s<2))] (0:0:0 - 1)
		IfNotBlocked
		reached[0][2] = 1;
		if (!((((int)((P0 *)_this)->s)<2)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 83: // STATE 3 - layer.pml:84 - [(((ready_epoch[((g*2)+s)]!=0)&&(ready_epoch[((g*2)+s)]<e)))] (12:0:2 - 1)
		IfNotBlocked
		reached[0][3] = 1;
		if (!(((((int)now.ready_epoch[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->s)), 4) ])!=0)&&(((int)now.ready_epoch[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->s)), 4) ])<((int)((P0 *)_this)->e)))))
			continue;
		/* merge: ack[((((g*2)+r)*2)+s)] = ready_seq[((g*2)+s)](12, 4, 12) */
		reached[0][4] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)now.ack[ Index(((((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r))*2)+((int)((P0 *)_this)->s)), 8) ]);
		now.ack[ Index(((((((P0 *)_this)->g*2)+((P0 *)_this)->r)*2)+((P0 *)_this)->s), 8) ] = ((int)now.ready_seq[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->s)), 4) ]);
#ifdef VAR_RANGES
		logval("ack[((((Consumer:g*2)+Consumer:r)*2)+Consumer:s)]", ((int)now.ack[ Index(((((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r))*2)+((int)((P0 *)_this)->s)), 8) ]));
#endif
		;
		/* merge: .(goto)(12, 7, 12) */
		reached[0][7] = 1;
		;
		/* merge: s = (s+1)(12, 8, 12) */
		reached[0][8] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->s);
		((P0 *)_this)->s = (((int)((P0 *)_this)->s)+1);
#ifdef VAR_RANGES
		logval("Consumer:s", ((int)((P0 *)_this)->s));
#endif
		;
		/* merge: .(goto)(0, 13, 12) */
		reached[0][13] = 1;
		;
		_m = 3; goto P999; /* 4 */
	case 84: // STATE 7 - layer.pml:87 - [.(goto)] (0:12:1 - 2)
		IfNotBlocked
		reached[0][7] = 1;
		;
		/* merge: s = (s+1)(12, 8, 12) */
		reached[0][8] = 1;
		(trpt+1)->bup.oval = ((int)((P0 *)_this)->s);
		((P0 *)_this)->s = (((int)((P0 *)_this)->s)+1);
#ifdef VAR_RANGES
		logval("Consumer:s", ((int)((P0 *)_this)->s));
#endif
		;
		/* merge: .(goto)(0, 13, 12) */
		reached[0][13] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 85: // STATE 15 - layer.pml:92 - [next_piece[((g*2)+r)] = 0] (0:0:1 - 3)
		IfNotBlocked
		reached[0][15] = 1;
		(trpt+1)->bup.oval = ((int)now.next_piece[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ]);
		now.next_piece[ Index(((((P0 *)_this)->g*2)+((P0 *)_this)->r), 4) ] = 0;
#ifdef VAR_RANGES
		logval("next_piece[((Consumer:g*2)+Consumer:r)]", ((int)now.next_piece[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 86: // STATE 16 - layer.pml:94 - [(!(alive[((g*2)+r)]))] (0:0:0 - 1)
		IfNotBlocked
		reached[0][16] = 1;
		if (!( !(((int)now.alive[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ]))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 87: // STATE 18 - layer.pml:95 - [((poisoned[g]||((epoch_now[g]==e)&&(verdict[g]==3))))] (0:0:1 - 1)
		IfNotBlocked
		reached[0][18] = 1;
		if (!((((int)now.poisoned[ Index(((int)((P0 *)_this)->g), 2) ])||((((int)now.epoch_now[ Index(((int)((P0 *)_this)->g), 2) ])==((int)((P0 *)_this)->e))&&(((int)now.verdict[ Index(((int)((P0 *)_this)->g), 2) ])==3)))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: e */  (trpt+1)->bup.oval = ((P0 *)_this)->e;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P0 *)_this)->e = 0;
		_m = 3; goto P999; /* 0 */
	case 88: // STATE 20 - layer.pml:96 - [(((piece==3)&&!(flying)))] (0:0:2 - 1)
		IfNotBlocked
		reached[0][20] = 1;
		if (!(((((int)((P0 *)_this)->piece)==3)&& !(((int)((P0 *)_this)->flying)))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: piece */  (trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((P0 *)_this)->piece;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P0 *)_this)->piece = 0;
		if (TstOnly) return 1; /* TT */
		/* dead 1: flying */  (trpt+1)->bup.ovals[1] = ((P0 *)_this)->flying;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P0 *)_this)->flying = 0;
		_m = 3; goto P999; /* 0 */
	case 89: // STATE 22 - layer.pml:97 - [(flying)] (0:0:1 - 1)
		IfNotBlocked
		reached[0][22] = 1;
		if (!(((int)((P0 *)_this)->flying)))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: flying */  (trpt+1)->bup.oval = ((P0 *)_this)->flying;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P0 *)_this)->flying = 0;
		_m = 3; goto P999; /* 0 */
	case 90: // STATE 23 - layer.pml:99 - [assert(((slot_epoch[((g*2)+fly_slot)]==e)&&(slot_piece[((g*2)+fly_slot)]==fly_piece)))] (0:29:1 - 1)
		IfNotBlocked
		reached[0][23] = 1;
		spin_assert(((((int)now.slot_epoch[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->fly_slot)), 4) ])==((int)((P0 *)_this)->e))&&(((int)now.slot_piece[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->fly_slot)), 4) ])==((int)((P0 *)_this)->fly_piece))), "((slot_epoch[((g*2)+fly_slot)]==e)&&(slot_piece[((g*2)+fly_slot)]==fly_piece))", II, tt, t);
		/* merge: flying = 0(29, 24, 29) */
		reached[0][24] = 1;
		(trpt+1)->bup.oval = ((int)((P0 *)_this)->flying);
		((P0 *)_this)->flying = 0;
#ifdef VAR_RANGES
		logval("Consumer:flying", ((int)((P0 *)_this)->flying));
#endif
		;
		_m = 3; goto P999; /* 1 */
	case 91: // STATE 26 - layer.pml:103 - [(((alive[((g*2)+r)]&&(piece==3))&&(0!=5)))] (0:0:0 - 1)
		IfNotBlocked
		reached[0][26] = 1;
		if (!(((((int)now.alive[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ])&&(((int)((P0 *)_this)->piece)==3))&&(0!=5))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 92: // STATE 27 - layer.pml:103 - [done_epoch[((g*2)+r)] = e] (0:0:1 - 1)
		IfNotBlocked
		reached[0][27] = 1;
		(trpt+1)->bup.oval = ((int)now.done_epoch[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ]);
		now.done_epoch[ Index(((((P0 *)_this)->g*2)+((P0 *)_this)->r), 4) ] = ((int)((P0 *)_this)->e);
#ifdef VAR_RANGES
		logval("done_epoch[((Consumer:g*2)+Consumer:r)]", ((int)now.done_epoch[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 93: // STATE 31 - layer.pml:107 - [(alive[((g*2)+r)])] (0:0:0 - 1)
		IfNotBlocked
		reached[0][31] = 1;
		if (!(((int)now.alive[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ])))
			continue;
		_m = 3; goto P999; /* 0 */
	case 94: // STATE 32 - layer.pml:107 - [ack[((((g*2)+r)*2)+fly_slot)] = fly_seq] (0:0:1 - 1)
		IfNotBlocked
		reached[0][32] = 1;
		(trpt+1)->bup.oval = ((int)now.ack[ Index(((((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r))*2)+((int)((P0 *)_this)->fly_slot)), 8) ]);
		now.ack[ Index(((((((P0 *)_this)->g*2)+((P0 *)_this)->r)*2)+((P0 *)_this)->fly_slot), 8) ] = ((int)((P0 *)_this)->fly_seq);
#ifdef VAR_RANGES
		logval("ack[((((Consumer:g*2)+Consumer:r)*2)+Consumer:fly_slot)]", ((int)now.ack[ Index(((((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r))*2)+((int)((P0 *)_this)->fly_slot)), 8) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 95: // STATE 36 - layer.pml:111 - [(((alive[((g*2)+r)]&&(piece==3))&&(0==5)))] (0:0:0 - 1)
		IfNotBlocked
		reached[0][36] = 1;
		if (!(((((int)now.alive[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ])&&(((int)((P0 *)_this)->piece)==3))&&(0==5))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 96: // STATE 37 - layer.pml:111 - [done_epoch[((g*2)+r)] = e] (0:0:1 - 1)
		IfNotBlocked
		reached[0][37] = 1;
		(trpt+1)->bup.oval = ((int)now.done_epoch[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ]);
		now.done_epoch[ Index(((((P0 *)_this)->g*2)+((P0 *)_this)->r), 4) ] = ((int)((P0 *)_this)->e);
#ifdef VAR_RANGES
		logval("done_epoch[((Consumer:g*2)+Consumer:r)]", ((int)now.done_epoch[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 97: // STATE 41 - layer.pml:114 - [((((((piece<3)&&!(flying))&&(ready_epoch[((g*2)+(piece%2))]==e))&&(ready_number[((g*2)+(piece%2))]==piece))&&(ready_seq[((g*2)+(piece%2))]>ack[((((g*2)+r)*2)+(piece%2))])))] (0:0:1 - 1)
		IfNotBlocked
		reached[0][41] = 1;
		if (!((((((((int)((P0 *)_this)->piece)<3)&& !(((int)((P0 *)_this)->flying)))&&(((int)now.ready_epoch[ Index(((((int)((P0 *)_this)->g)*2)+(((int)((P0 *)_this)->piece)%2)), 4) ])==((int)((P0 *)_this)->e)))&&(((int)now.ready_number[ Index(((((int)((P0 *)_this)->g)*2)+(((int)((P0 *)_this)->piece)%2)), 4) ])==((int)((P0 *)_this)->piece)))&&(((int)now.ready_seq[ Index(((((int)((P0 *)_this)->g)*2)+(((int)((P0 *)_this)->piece)%2)), 4) ])>((int)now.ack[ Index(((((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r))*2)+(((int)((P0 *)_this)->piece)%2)), 8) ])))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: flying */  (trpt+1)->bup.oval = ((P0 *)_this)->flying;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P0 *)_this)->flying = 0;
		_m = 3; goto P999; /* 0 */
	case 98: // STATE 42 - layer.pml:116 - [s = (piece%2)] (0:53:7 - 1)
		IfNotBlocked
		reached[0][42] = 1;
		(trpt+1)->bup.ovals = grab_ints(7);
		(trpt+1)->bup.ovals[0] = ((int)((P0 *)_this)->s);
		((P0 *)_this)->s = (((int)((P0 *)_this)->piece)%2);
#ifdef VAR_RANGES
		logval("Consumer:s", ((int)((P0 *)_this)->s));
#endif
		;
		/* merge: assert((slot_epoch[((g*2)+s)]==e))(53, 43, 53) */
		reached[0][43] = 1;
		spin_assert((((int)now.slot_epoch[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->s)), 4) ])==((int)((P0 *)_this)->e)), "(slot_epoch[((g*2)+s)]==e)", II, tt, t);
		/* merge: assert((slot_piece[((g*2)+s)]==piece))(53, 44, 53) */
		reached[0][44] = 1;
		spin_assert((((int)now.slot_piece[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->s)), 4) ])==((int)((P0 *)_this)->piece)), "(slot_piece[((g*2)+s)]==piece)", II, tt, t);
		/* merge: assert((next_piece[((g*2)+r)]==piece))(53, 45, 53) */
		reached[0][45] = 1;
		spin_assert((((int)now.next_piece[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ])==((int)((P0 *)_this)->piece)), "(next_piece[((g*2)+r)]==piece)", II, tt, t);
		/* merge: next_piece[((g*2)+r)] = (piece+1)(53, 46, 53) */
		reached[0][46] = 1;
		(trpt+1)->bup.ovals[1] = ((int)now.next_piece[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ]);
		now.next_piece[ Index(((((P0 *)_this)->g*2)+((P0 *)_this)->r), 4) ] = (((int)((P0 *)_this)->piece)+1);
#ifdef VAR_RANGES
		logval("next_piece[((Consumer:g*2)+Consumer:r)]", ((int)now.next_piece[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ]));
#endif
		;
		/* merge: fly_piece = piece(53, 47, 53) */
		reached[0][47] = 1;
		(trpt+1)->bup.ovals[2] = ((int)((P0 *)_this)->fly_piece);
		((P0 *)_this)->fly_piece = ((int)((P0 *)_this)->piece);
#ifdef VAR_RANGES
		logval("Consumer:fly_piece", ((int)((P0 *)_this)->fly_piece));
#endif
		;
		/* merge: fly_slot = s(53, 48, 53) */
		reached[0][48] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->fly_slot);
		((P0 *)_this)->fly_slot = ((int)((P0 *)_this)->s);
#ifdef VAR_RANGES
		logval("Consumer:fly_slot", ((int)((P0 *)_this)->fly_slot));
#endif
		;
		/* merge: fly_seq = ready_seq[((g*2)+s)](53, 49, 53) */
		reached[0][49] = 1;
		(trpt+1)->bup.ovals[4] = ((int)((P0 *)_this)->fly_seq);
		((P0 *)_this)->fly_seq = ((int)now.ready_seq[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->s)), 4) ]);
#ifdef VAR_RANGES
		logval("Consumer:fly_seq", ((int)((P0 *)_this)->fly_seq));
#endif
		;
		/* merge: flying = 1(53, 50, 53) */
		reached[0][50] = 1;
		(trpt+1)->bup.ovals[5] = ((int)((P0 *)_this)->flying);
		((P0 *)_this)->flying = 1;
#ifdef VAR_RANGES
		logval("Consumer:flying", ((int)((P0 *)_this)->flying));
#endif
		;
		/* merge: piece = (piece+1)(53, 51, 53) */
		reached[0][51] = 1;
		(trpt+1)->bup.ovals[6] = ((int)((P0 *)_this)->piece);
		((P0 *)_this)->piece = (((int)((P0 *)_this)->piece)+1);
#ifdef VAR_RANGES
		logval("Consumer:piece", ((int)((P0 *)_this)->piece));
#endif
		;
		/* merge: .(goto)(0, 54, 53) */
		reached[0][54] = 1;
		;
		_m = 3; goto P999; /* 10 */
	case 99: // STATE 56 - layer.pml:130 - [running[((g*2)+r)] = 0] (0:0:1 - 7)
		IfNotBlocked
		reached[0][56] = 1;
		(trpt+1)->bup.oval = ((int)now.running[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ]);
		now.running[ Index(((((P0 *)_this)->g*2)+((P0 *)_this)->r), 4) ] = 0;
#ifdef VAR_RANGES
		logval("running[((Consumer:g*2)+Consumer:r)]", ((int)now.running[ Index(((((int)((P0 *)_this)->g)*2)+((int)((P0 *)_this)->r)), 4) ]));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 100: // STATE 57 - layer.pml:131 - [-end-] (0:0:0 - 1)
		IfNotBlocked
		reached[0][57] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */
	case  _T5:	/* np_ */
		if (!((!(trpt->o_pm&4) && !(trpt->tau&128))))
			continue;
		/* else fall through */
	case  _T2:	/* true */
		_m = 3; goto P999;
#undef rand
	}

